"""Saved plans are read as they were written, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dropmuon.planning import Plan
from tests.planning.synthetic_plans import costs_of, layer_names, noise_of, plan_of, random_plan


@pytest.mark.parametrize("regime", ["smooth", "1/eps", "1/eps^2", "stochastic"])
def test_a_loaded_plan_prints_and_predicts_the_same(tmp_path: Path, regime: Any) -> None:
    found = random_plan([f"layer{i}" for i in range(4)], 2, regime=regime, seed=7)
    found.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert str(loaded) == str(found)
    assert loaded.options == found.options
    assert (loaded.bounds.regime, loaded.seed) == (regime, 7)


@pytest.mark.parametrize("steps", [None, 300])
def test_a_plan_by_measurements_is_loaded_as_it_was(tmp_path: Path, steps: int | None) -> None:
    noise = noise_of([0.01, 0.02, 0.01], growth=1.0, spread=0.5)
    found = Plan(costs_of(layer_names(3)), noise, None, steps, 3)
    found.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert str(loaded) == str(found)
    assert loaded.options == found.options
    assert (loaded.settings, loaded.steps, loaded.seed) == (found.settings, steps, 3)


@pytest.mark.parametrize("given", [0, 1, 3, 5, 4.5, "4", True, None])
def test_a_plan_of_another_format_is_refused_in_one_line(tmp_path: Path, given: Any) -> None:
    path = spoiled(tmp_path / "plan.json", lambda content: content.update(format=given))
    with pytest.raises(
        ValueError, match=r"plan.json cannot be read as a plan: its format"
    ) as found:
        Plan.load(path)
    assert f"its format is {given!r}, but this version of dropmuon reads" in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', '{"format": 99}', "[1]"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"path .*plan.json"):
        Plan.load(path)


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    found = plan_of(full=[1.0, 3.0], alone=[0.5, 1.0])
    path = tmp_path / "plan.json"
    found.save(path)
    old = path.read_text()
    broken = replace(found, steps=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text() == old
    assert json.loads(old)["layers"] == ["layer0", "layer1"]
    assert list(tmp_path.iterdir()) == [path]


def spoiled(path: Path, spoil: Callable[[Any], object]) -> Path:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    replace(found, noise=noise_of([0.1, 0.2, 0.3]), steps=100).save(path)
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    return path


DAMAGE: dict[str, Callable[[Any], object]] = {
    "no format": lambda c: c.pop("format"),
    "layers as text": lambda c: c.update(layers="abc"),
    "layers missing": lambda c: c.update(layers=["a"]),
    "updates": lambda c: c["bounds"].update(updates_per_batch=0),
    "steps": lambda c: c.update(steps=0),
    "examples": lambda c: c["noise"].update(examples=0),
    "pieces": lambda c: c["noise"].update(pieces=1),
    "seconds of pieces": lambda c: c["noise"].update(seconds=-1.0),
    "noise of few steps": lambda c: c["noise"]["noise"].pop(),
    "no signal": lambda c: c["noise"].update(signal=[], noise=[]),
    "turns": lambda c: c["costs"].update(takes_turns=[1, 0, 1]),
    "seed": lambda c: c.update(seed="x"),
    "regime": lambda c: c["bounds"].update(regime="fast"),
    "rounds": lambda c: c["costs"].update(rounds="a"),
    "fit error": lambda c: c["costs"].update(fit_error=-1.0),
    "seconds": lambda c: c["costs"].update(seconds=[1]),
    "seconds below zero": lambda c: c["costs"]["seconds"].update(overhead=-1.0),
    "cutoffs": lambda c: c["costs"].update(seconds_by_cutoff=[1.0]),
    "resampled": lambda c: c["costs"].update(resampled=[3]),
    "no ratios": lambda c: c["bounds"].update(ratios=[]),
    "ratios of unknown layers": lambda c: c["bounds"]["ratios"][0].__setitem__(0, [0, 9]),
    "ratios below zero": lambda c: c["bounds"]["ratios"][0][1][0].__setitem__(0, -1.0),
    "ratios of few points": lambda c: c["bounds"]["ratios"][0][1].pop(),
    "no points": lambda c: c["bounds"].update(duals=[]),
    "duals": lambda c: c["bounds"].update(duals=[[1.0]]),
    "confidence": lambda c: c["bounds"].update(confidence=2),
    "adamw": lambda c: c["bounds"].update(adamw=3),
}


@pytest.mark.parametrize("spoil", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_plan_is_refused_in_one_way(tmp_path: Path, spoil: Any) -> None:
    path = spoiled(tmp_path / "plan.json", spoil)
    with pytest.raises(ValueError, match=r"plan.json cannot be read as a plan: \w"):
        Plan.load(path)


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    path = spoiled(tmp_path / "plan.json", lambda content: content["costs"].pop("resampled"))
    with pytest.raises(ValueError, match=r"plan.json cannot be read as a plan: resampled is miss"):
        Plan.load(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused_in_the_same_way(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as a plan"):
        Plan.load(path)
