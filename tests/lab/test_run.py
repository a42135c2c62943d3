"""The files of a run: what is written is read back, and damage is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dropmuon.lab.run import Evaluation, RunDirectory, finite, methods_in

EVALUATION = Evaluation(
    method="full",
    seed=3,
    step=20,
    epoch=0.5,
    seconds=1.25,
    operations=1e9,
    train_accuracy=0.5,
    train_loss=None,
    test_accuracy=0.25,
    test_loss=2.0,
    moved=(1, 2),
    cutoffs=(1, 0),
)


def test_evaluations_are_read_back_in_order(tmp_path: Path) -> None:
    run, later = RunDirectory(tmp_path), replace(EVALUATION, method="adamw", moved=(), cutoffs=())
    assert run.evaluations() == []
    for each in (EVALUATION, later):
        run.append(each)
    assert run.evaluations() == [EVALUATION, later]
    assert methods_in(run.evaluations()) == ["full", "adamw"]
    run.rewrite([later])
    assert run.evaluations() == [later]


def test_an_incomplete_line_and_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    later = json.loads(EVALUATION.line()) | {"watts": 12.0}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(later) + '\n{"method": "fu')
    assert RunDirectory(tmp_path).evaluations() == [EVALUATION]


def test_a_line_of_an_earlier_version_has_no_activity() -> None:
    earlier = json.loads(EVALUATION.line())
    for name in ("moved", "cutoffs", "load"):
        del earlier[name]
    assert Evaluation.parse(json.dumps(earlier)) == replace(EVALUATION, moved=(), cutoffs=())


def test_only_one_holder_of_the_lock_is_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock() as first, run.lock() as second:
        assert (first, second) == (True, False)
    with run.lock() as again:
        assert again


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a dropmuon run: it has no config.json; give a directory that"),
        ("{", "config.json is not JSON: .*; the run is damaged"),
        ("[1]", "config.json must hold an object, got list"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=words):
        _ = RunDirectory(tmp_path).config


def test_what_json_cannot_write_is_none() -> None:
    assert finite(1.5) == 1.5
    assert finite(float("nan")) is finite(float("inf")) is None
