"""The page about the theory: its examples run as one program."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_the_examples_of_the_theory_page_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_the_page_says_which_printed_formula_is_not_followed() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "## Optimal probabilities" in text
    assert "gives the same with L1 for L0" in text
