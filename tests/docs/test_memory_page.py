"""The figures of docs/memory.md are those of the raw output that it names."""

from __future__ import annotations

import re

from tests.docs.pages import text_of


def test_every_measured_figure_is_in_the_raw_output() -> None:
    page = text_of("docs/memory.md").partition("Published by others")[0]
    tables = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    shown = {float(number) for number in re.findall(r"(?<![\d.])\d+\.\d+", tables)}
    raw = {float(number) for number in re.findall(r"\d+\.\d\d\b", text_of("benchmarks/memory.txt"))}
    assert len(shown) > 60
    assert [each for each in shown if min(abs(each - other) for other in raw) > 0.051] == []
