"""Comparisons: fair, resumable, and the same whenever they are run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train import compare as compare_module
from dropmuon.lab.train.compare import compare
from dropmuon.lab.train.trial import Trial
from dropmuon.planning import Plan
from tests.lab.tiny import METHODS, tiny
from tests.lab.train.runs import StopAfter, timeless


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return compare(tiny(), tmp_path_factory.mktemp("runs") / "unbroken")


def test_every_method_is_evaluated_equally_often_and_clocks_only_rise(
    unbroken: RunDirectory,
) -> None:
    found = unbroken.evaluations()
    assert len(found) == len(METHODS) * 2 * 5
    for method in METHODS:
        for seed in (0, 3):
            mine = [e for e in found if (e.method, e.seed) == (method, seed)]
            assert [e.step for e in mine] == [0, 2, 4, 6, 8]
            assert [e.epoch for e in mine] == [0, 0.5, 1, 1.5, 2]
            assert mine[0].seconds == mine[0].operations == 0
            assert all(a.seconds < b.seconds for a, b in pairwise(mine))
            assert all(a.operations < b.operations for a, b in pairwise(mine))


def test_methods_of_a_seed_begin_as_one_and_seeds_differ(unbroken: RunDirectory) -> None:
    starts = [e for e in unbroken.evaluations() if e.step == 0]
    for seed in (0, 3):
        assert len({(e.test_loss, e.train_loss) for e in starts if e.seed == seed}) == 1
    assert len({e.test_loss for e in starts}) == 2


def test_activity_counts_add_up_to_the_steps(unbroken: RunDirectory) -> None:
    for each in unbroken.evaluations():
        if each.method == "adamw":
            assert each.moved == each.cutoffs == ()
        elif each.step:
            assert sum(each.cutoffs) == 2
            assert each.moved[-1] == 2
        if each.method == "full" and each.step:
            assert each.moved == (2, 2, 2)


def test_drop_muon_takes_fewer_operations_than_full_updates(unbroken: RunDirectory) -> None:
    last = {e.method: e.operations for e in unbroken.evaluations() if (e.seed, e.step) == (0, 8)}
    assert last["drop-muon:uniform"] < last["full"]


def test_a_second_run_finds_the_same(unbroken: RunDirectory, tmp_path: Path) -> None:
    assert timeless(compare(tiny(), tmp_path / "again")) == timeless(unbroken)


@pytest.mark.parametrize("evaluations", [0, 3, 9, 21])
def test_an_interrupted_and_resumed_run_equals_an_unbroken_one(
    unbroken: RunDirectory, tmp_path: Path, evaluations: int
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        compare(tiny(), out, watcher=StopAfter(evaluations))
    with (out / "evaluations.jsonl").open("a") as file:
        file.write('{"method": "full", "se')
    run = compare(tiny(), out, resume=True)
    assert timeless(run) == timeless(unbroken)
    assert not list(run.checkpoints.iterdir())


def test_evaluations_after_the_last_kept_state_are_made_anew(
    unbroken: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        compare(tiny(), out, watcher=StopAfter(9))
    (out / "checkpoints" / "0-seed0.pt").unlink()
    assert timeless(compare(tiny(), out, resume=True)) == timeless(unbroken)


def test_a_run_that_began_with_the_old_name_of_full_is_resumed(
    unbroken: RunDirectory, tmp_path: Path
) -> None:
    config = tiny(methods=("muon", *METHODS[1:]))
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "run", watcher=StopAfter(9))
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["baseline"] == "muon"
    run = compare(Config.of(saved), tmp_path / "run", resume=True)
    expected = [
        replace(each, method="muon") if each.method == "full" else each
        for each in timeless(unbroken)
    ]
    assert timeless(run) == sorted(expected, key=lambda each: (each.seed, each.method, each.step))


def test_every_trial_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Noted(Trial):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append((self.method.name, self.seed))

    monkeypatch.setattr(compare_module, "Trial", Noted)
    compare(tiny(methods=("full", "adamw"), epochs=1), tmp_path / "run")
    assert made == [("full", 0), ("adamw", 0), ("full", 3), ("adamw", 3)]
    compare(tiny(methods=("full", "adamw"), epochs=1), tmp_path / "run", resume=True)
    assert len(made) == 4
    made.clear()
    planned = tiny(methods=("full", "drop-muon:planned"), epochs=1, seeds=(0,), plan_budget=0.5)
    compare(planned, tmp_path / "planned")
    assert made == [("full", 0), ("drop-muon:planned", 0)]


def test_every_kind_of_trial_goes_on_where_it_was(tmp_path: Path) -> None:
    options: dict[str, dict[str, object]] = {
        "a:b": {"base": "sgd"},
        "a-b": {"base": "drop-muon:uniform", "updates_per_batch": 2},
        "a/b": {"base": "drop-muon:random-subset", "resample_every": 2},
        "x" * 300: {"base": "drop-muon:nice-2", "policy": "scion"},
        "torch-muon": {"adamw_lr": 0.01},
    }
    config = tiny(
        dataset="fashion-mini",
        model="cnn",
        channels=(2, 3),
        batch_norm=True,
        augment=True,
        batch_size=3000,
        epochs=1,
        seeds=(0,),
        evaluations_per_epoch=3,
        methods=tuple(options),
        options=options,
    )
    unbroken = compare(config, tmp_path / "unbroken")
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "broken", watcher=StopAfter(11))
    assert timeless(compare(config, tmp_path / "broken", resume=True)) == timeless(unbroken)


def test_settings_are_those_that_a_method_heeds(unbroken: RunDirectory) -> None:
    found = {name: each["settings"] for name, each in unbroken.methods.items()}
    assert found["adamw"] == {"lr": 0.001}
    assert found["full"] == {"lr": 0.05, "momentum": 0.5, "policy": "spectral"}


def test_a_finished_run_is_resumed_without_a_step(unbroken: RunDirectory) -> None:
    before = (unbroken.path / "evaluations.jsonl").read_text()
    compare(tiny(), unbroken.path, resume=True, watcher=StopAfter(0))
    assert (unbroken.path / "evaluations.jsonl").read_text() == before


def test_a_run_is_not_resumed_with_other_settings(unbroken: RunDirectory) -> None:
    with pytest.raises(ValueError, match=r"epochs must be what the run began with .* 2, got 3"):
        compare(tiny(epochs=3), unbroken.path, resume=True)


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="exists and is not empty; add --resume"):
        compare(tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        compare(tiny(), out, watcher=StopAfter(3))
    before = (out / "evaluations.jsonl").read_text()
    with RunDirectory(out).lock(), pytest.raises(ValueError, match="is in use by another process"):
        compare(tiny(), out, resume=True)
    assert (out / "evaluations.jsonl").read_text() == before


def test_a_batch_larger_than_the_set_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 1437 training examples"):
        compare(tiny(batch_size=5000), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("drop-muon:nice-4", {}, "tau must be at most the number of layers, 3, got 4"),
        ("drop-muon:uniform", {"momentum": 2.0}, "momentum must be in"),
        ("drop-muon:uniform", {"policy": "muom"}, "did you mean 'muon'"),
        ("drop-muon:planned", {"momentum": 2.0}, "momentum must be in"),
        ("adamw", {"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_what_an_optimizer_refuses_is_refused_before_anything_is_written(
    tmp_path: Path, method: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        compare(tiny(methods=(method,), options={method: options}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_say_what_was_run_and_how_layers_are_drawn(unbroken: RunDirectory) -> None:
    assert Config.of(unbroken.config) == tiny()
    assert unbroken.environment["torch"] == torch.__version__
    methods = unbroken.methods
    assert list(methods) == list(METHODS)
    assert methods["adamw"]["layers"] == []
    shift = methods["drop-muon:epoch-shift"]
    assert shift["layers"] == ["hidden1", "hidden2", "head"]
    assert shift["cutoff"][0][0] > shift["cutoff"][-1][0]
    for row in shift["cutoff"]:
        assert sum(row) == pytest.approx(1.0)
    json.dumps(methods, allow_nan=False)


def test_several_updates_per_batch_run_and_cost_less_than_as_many_batches(tmp_path: Path) -> None:
    options = {"drop-muon:uniform": {"updates_per_batch": 2}}
    config = tiny(methods=("full", "drop-muon:uniform"), options=options, seeds=(0,))
    found = compare(config, tmp_path / "run").evaluations()
    assert [e.step for e in found if e.method == "drop-muon:uniform"] == [0, 2, 4, 6, 8]


def test_the_plan_is_made_once_and_kept(tmp_path: Path) -> None:
    config = tiny(methods=("full", "drop-muon:planned"), seeds=(0,), plan_budget=1.0, epochs=1)
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "run", watcher=StopAfter(2))
    plan = (tmp_path / "run" / "plan.json").read_text()
    run = compare(config, tmp_path / "run", resume=True)
    assert (run.path / "plan.json").read_text() == plan
    assert (run.path / "plan.txt").read_text() == f"{Plan.load(run.path / 'plan.json')}\n"


def test_bytes_are_learned_by_a_gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that repeats itself, in the place of Shakespeare's."""
    text = data.Examples(*(torch.arange(o, o + 80).remainder(5).reshape(10, 8) for o in (0, 1)))
    made = data.Data("shakespeare", "bytes", text, text, 256, (8,))
    monkeypatch.setattr(data, "load", lambda *_, **__: made)
    config = Config(
        dataset="shakespeare",
        model="gpt",
        channels=(32, 32),
        batch_size=5,
        epochs=12,
        seeds=(0,),
        methods=("full", "drop-muon:uniform"),
        lr=0.05,
        options={name: {"adamw_lr": 0.01} for name in ("full", "drop-muon:uniform")},
    )
    last = compare(config, tmp_path / "run").evaluations()[-2:]
    assert all(each.test_accuracy > 0.9 for each in last)
    for each in last:
        assert each.test_loss is not None
        assert each.test_bits_per_byte == pytest.approx(each.test_loss / math.log(2))
        assert each.train_bits_per_byte == each.test_bits_per_byte


def test_images_have_no_bits_per_byte(unbroken: RunDirectory) -> None:
    assert {each.test_bits_per_byte for each in unbroken.evaluations()} == {None}


def test_the_portion_that_each_layer_learned_from_is_recorded(tmp_path: Path) -> None:
    config = tiny(methods=("full", "drop-muon:parts-4"), seeds=(0,))
    found = [e for e in compare(config, tmp_path / "run").evaluations() if e.step > 2]
    for each in found:
        expected = [1.0] * 3 if each.method == "full" else [0.25, 0.25, 1.0]
        assert each.shares == pytest.approx(expected)
        assert each.moved == (2, 2, 2)
        assert sum(each.cutoffs) == (2 if each.method == "full" else 8)
