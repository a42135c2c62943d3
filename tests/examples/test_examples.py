"""The examples of frameworks run, at a small size, and say what they found."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*loss_type", "ignore:.*pin_memory", "ignore::Warning:lightning"
)


def printed(capsys: pytest.CaptureFixture[str], example: str, *needed: str, **sizes: int) -> str:
    for module in needed:
        pytest.importorskip(module, reason="needs pip install -e '.[frameworks]'")
    main: Any = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["main"]
    main([text for name, size in sizes.items() for text in (f"--{name}", str(size))])
    return capsys.readouterr().out


def test_hf_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "hf_trainer", "transformers", steps=3, width=16, context=16)
    rows = re.findall(r"(all layers|uniform cutoffs|adaptive) +(\d\.\d+) +(\d+)%", found)
    assert [name for name, *_ in rows] == ["all layers", "uniform cutoffs", "adaptive"]
    assert all(4.5 < float(loss) < 5.6 for _, loss, _ in rows)  # ln 256 = 5.5 at random weights
    assert rows[0][2] == "0"
    assert int(rows[1][2]) > 0


def test_lightning_module(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "lightning_module", "lightning", epochs=2)
    rows = re.findall(r"(all layers|uniform cutoffs|adaptive) +(\d+\.\d)% +(\d+)%", found)
    assert [name for name, *_ in rows] == ["all layers", "uniform cutoffs", "adaptive"]
    assert all(float(accuracy) > 50 for _, accuracy, _ in rows)
    assert int(rows[1][2]) > 0


def test_finetune_gpt2(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "finetune_gpt2", "transformers", steps=6, width=16, context=16, batch=8)
    rows = re.findall(r"(all layers|parts) +0\.\d+ +(\d+) +(\d\.\d\de\+\d+) +(\d\.\d+)", found)
    (_, full_steps, full_cost, _), (_, steps, cost, _) = rows
    assert int(full_steps) == 6
    assert int(steps) > 6
    assert float(cost) <= float(full_cost)
