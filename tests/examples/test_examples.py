"""The examples run, at a small size, and say what they found."""

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


def test_accumulation(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "accumulation", "sklearn", steps=4)
    rows = re.findall(r"(all layers|parts|adaptive) +(\d+) +(\S+e\+\d+) +(\d+\.\d)%", found)
    (_, full, cost, _), (_, steps, spent, accuracy), _ = rows
    assert int(full) == 4
    assert int(steps) > 4
    assert float(spent) < 1.5 * float(cost)
    assert float(accuracy) > 20  # a tenth by guessing


def test_own_norm(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "own_norm", "sklearn", epochs=4)
    accuracies = re.findall(r"(own norm|Muon's norm): test accuracy (\d+\.\d)%", found)
    assert [name for name, _ in accuracies] == ["own norm", "Muon's norm"]
    assert all(float(accuracy) > 50 for _, accuracy in accuracies)


def test_own_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "own_sampler", "sklearn", epochs=4)
    rows = re.findall(r"(all layers|in parts|all or top) +(\d+\.\d)%  (\d+), (\d+)", found)
    assert [name for name, *_ in rows] == ["all layers", "all or top", "in parts"]
    assert int(rows[1][2]) < int(rows[1][3]) == 20
    assert rows[2][2] == rows[2][3] == "20"


def test_plan_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "plan_own_model", "sklearn", seconds=1)
    assert re.findall(r"batches of (\d+)", found) == ["1280", "64"]
    assert len(re.findall(r"full updates +1\.00x", found)) == 2
    assert len(re.findall(r"trained for 5 steps", found)) == 2


def test_digits(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    example["main"].__globals__["EPOCHS"] = 2
    example["main"]()
    rows = re.findall(r"^ +[12] +(\d+\.\d)% +(\d+\.\d)% +(\d+\.\d)%", capsys.readouterr().out, re.M)
    assert len(rows) == 2
    assert all(float(accuracy) > 30 for accuracy in rows[1])


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert set(re.findall(r"^\| \[([\w.]+)\]\(\.\./examples/\1\)", page, re.M)) == there
