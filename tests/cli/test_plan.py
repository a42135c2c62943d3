"""`dropmuon plan`: a plan, or one clear line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from dropmuon.cli import main

FACTORY = """
import torch
from torch import nn

def small():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, lambda m, x: m(x).square().mean(), [torch.ones(8, 4)]

def infinite():
    model, _, batches = small()
    return model, lambda m, x: m(x).sum() * float("inf"), batches

def wrong():
    return 3

def pair():
    return small()[:2]

def misfit():
    return nn.Linear(7, 3), *small()[1:]

def raising():
    return {}["batch"]

def leaving():
    raise SystemExit(0)

class Problems:
    small = staticmethod(small)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_problem.py").write_text(FACTORY)
    (tmp_path / "broken_problem.py").write_text("def f(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_plan_prints_and_writes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--budget", "1", "--out", "p.json", "--figure", "p.svg"]
    assert main(["plan", "my_problem:small", *options]) == 0
    assert "Expected time of full updates" in capsys.readouterr().out
    assert (here / "p.json").exists()
    assert (here / "p.svg").exists()


def test_bounds_and_steps_may_be_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--budget", "1", "--regime", "smooth", "--steps", "3"]
    assert main(["plan", "my_problem:small", *options]) == 0
    out = capsys.readouterr().out
    assert "by bounds" in out
    assert "noise along 3 steps" in out


def test_a_factory_may_be_an_attribute_of_an_attribute(here: Path) -> None:
    assert main(["plan", "my_problem:Problems.small", "--budget", "0.5"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_module:f"], "No module named 'no_such_module'"),
        (["my_problem:nothing"], "has no 'nothing'"),
        (["my_problem"], "factory must be written package.module:function"),
        (["my_problem:wrong"], "must return (model, loss, batches), got int"),
        (["my_problem:pair"], "must return (model, loss, batches), got tuple of 2"),
        (["my_problem:nn"], "must be a function, got module"),
        (["my_problem:misfit"], "factory 'my_problem:misfit' failed: RuntimeError"),
        (["my_problem:raising"], "failed: KeyError: 'batch'"),
        (["my_problem:leaving"], "failed: SystemExit"),
        (["broken_problem:f"], "failed: SyntaxError"),
        ([".my_problem:small"], "factory must be written"),
        (["my_problem:infinite"], "loss"),
        (["my_problem:small", "--regime", "smoth"], "did you mean 'smooth'"),
        (["my_problem:small", "--figure", "p.txt"], "--figure must end in .png, .svg, .pdf"),
        (["my_problem:small", "--budget", "-1"], "budget must be positive"),
        (["my_problem:small", "--policy", "spectrall"], "did you mean 'spectral'"),
        (["my_problem:small", "--budget", "1", "--out", "no/such/folder/p.json"], "no/such/folder"),
    ],
)
def test_a_misuse_is_one_line_and_exit_code_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plan", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("dropmuon: error: ")
    assert message in lines[0]
