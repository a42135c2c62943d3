"""Budgets: every method spends what so many epochs of the baseline cost, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dropmuon import samplers
from dropmuon.lab import data
from dropmuon.lab.analysis import summarize
from dropmuon.lab.analysis.series import activity, mean_line, trials
from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation, RunDirectory
from dropmuon.lab.train.compare import compare
from dropmuon.lab.train.equal_terms import Budget, initial_model, measured_budget
from dropmuon.lab.train.trial import Trial
from tests.lab.tiny import tiny
from tests.lab.train.runs import StopAfter, timeless

METHODS = ("full", "drop-muon:uniform", "drop-muon:epoch-shift", "drop-muon:parts-4", "full@200")


def equal_cost(**changes: Any) -> Config:
    return tiny(**{"methods": METHODS, "budget": "ops", "seeds": (0, 1), **changes})


def trial_of(config: Config, method: str) -> Trial:
    found = data.load(config.dataset)
    initial = initial_model(config, found, 0)
    return Trial(config, config.method(method), 0, found, initial, measured_budget(config, found))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return compare(equal_cost(), tmp_path_factory.mktemp("runs") / "unbroken")


def ends(run: RunDirectory) -> Mapping[tuple[str, int], Evaluation]:
    return {(each.method, each.seed): each for each in run.evaluations() if each.is_final}


def test_every_method_ends_once_and_within_the_operations_of_the_baseline(
    unbroken: RunDirectory,
) -> None:
    found = ends(unbroken)
    assert len([each for each in unbroken.evaluations() if each.is_final]) == len(found)
    assert set(found) == {(method, seed) for method in METHODS for seed in (0, 1)}
    for seed in (0, 1):
        most = found["full", seed].operations
        assert found["full", seed].step == 8
        for method in METHODS:
            assert 0.8 * most < found[method, seed].operations <= most


def test_cheaper_steps_mean_more_of_them(unbroken: RunDirectory) -> None:
    found = ends(unbroken)
    assert found["drop-muon:uniform", 0].step > found["full", 0].step
    assert found["drop-muon:parts-4", 0].step > found["full", 0].step
    assert found["full@200", 0].step > found["full", 0].step


def test_evaluations_are_spread_over_the_budget(unbroken: RunDirectory) -> None:
    for method in METHODS:
        mine = [e for e in unbroken.evaluations() if (e.method, e.seed) == (method, 0)]
        progress = [e.progress or 0.0 for e in mine]
        assert progress[0] == 0.0
        assert progress[-1] == 1.0
        assert progress == sorted(progress)
        assert len(progress) == 5


def test_a_run_at_equal_cost_is_whole_and_has_lines_over_all_seeds(unbroken: RunDirectory) -> None:
    results = summarize(unbroken)
    assert results.unfinished == ()
    for method in METHODS:
        final = results.final(method)
        assert final is not None
        assert final.seeds == 2
        of_seed = trials(unbroken.evaluations())[method]
        line = mean_line(of_seed, "operations", "test")
        assert len(line) == 5
        last = [trial[-1].test_accuracy for trial in of_seed.values()]
        assert line[-1][1] == pytest.approx(sum(last) / 2)
        edges, shares = activity(of_seed)
        assert edges == sorted(set(edges))
        assert {len(row) for row in shares} == {4}
        assert all(share <= 1 for row in shares for share in row)


def test_no_further_step_fits() -> None:
    for method in METHODS:
        trial = trial_of(equal_cost(), method)
        trial.advance(1.0)
        steps, operations = trial.step, trial.operations
        trial.advance(1.0)
        assert (trial.step, trial.is_finished) == (steps, True)
        assert operations + trial._next().operations > trial._amount


@pytest.mark.parametrize("evaluations", [0, 7, 31])
def test_a_resumed_run_equals_an_unbroken_one_at_equal_cost(
    unbroken: RunDirectory, tmp_path: Path, evaluations: int
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        compare(equal_cost(), out, watcher=StopAfter(evaluations))
    assert timeless(compare(equal_cost(), out, resume=True)) == timeless(unbroken)


@pytest.mark.skipif(not hasattr(samplers, "Adaptive"), reason="there is no adaptive sampler")
def test_adaptive_shares_are_recorded_and_resumed_at_equal_cost(tmp_path: Path) -> None:
    methods = ("full", "drop-muon:adaptive")
    config = equal_cost(methods=methods, epochs=6, evaluations_per_epoch=1, seeds=(0,))
    unbroken = compare(config, tmp_path / "unbroken")
    last = ends(unbroken)["drop-muon:adaptive", 0]
    assert len(last.shares) == len(last.noise) == 3
    assert all(noise is not None and noise >= 0 for noise in last.noise)
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "run", watcher=StopAfter(9))
    assert timeless(compare(config, tmp_path / "run", resume=True)) == timeless(unbroken)


def test_the_schedule_spans_a_methods_own_steps() -> None:
    """Seen in the learning rates themselves: 1 - spent share, of every group."""
    config = equal_cost(lr=0.1)
    for method in METHODS:
        trial = trial_of(config, method)
        while not trial.is_finished:
            spent = trial.spent
            trial.advance(spent + 1e-9)
            rates = [group["lr"] for group in trial.optimizer.param_groups]
            assert rates == pytest.approx([0.1 * (1 - spent)] * len(rates))
        assert 0 < min(rates) < 0.02


def test_a_schedule_of_its_own_holds_for_one_method_and_all_its_groups() -> None:
    options = {"torch-muon": {"schedule": "wsd", "decay": 0.5, "lr": 0.1, "adamw_lr": 0.01}}
    trial = trial_of(equal_cost(methods=("full", "torch-muon"), options=options), "torch-muon")
    trial.advance(0.4)
    assert [group["lr"] for group in trial.optimizer.param_groups] == [0.1, 0.01]
    trial.advance(1.0)
    muon, adamw = (group["lr"] for group in trial.optimizer.param_groups)
    assert muon == pytest.approx(10 * adamw)
    assert 0 < muon < 0.05


def test_samplers_with_progress_expect_as_many_steps_as_they_can_afford() -> None:
    trial = trial_of(equal_cost(epochs=20), "drop-muon:epoch-shift")
    trial.advance(1.0)
    assert trial.optimizer.draws.total_steps == pytest.approx(trial.step, rel=0.05)


def test_a_share_of_an_epoch_is_a_budget() -> None:
    config = equal_cost(epochs=0.5)
    trial = trial_of(config, "full")
    trial.advance(1.0)
    assert trial.step == 2


def test_seconds_are_measured_once_and_kept(tmp_path: Path) -> None:
    config = equal_cost(budget="seconds", seeds=(0,), methods=("full", "drop-muon:parts-4"))
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "run", watcher=StopAfter(1))
    kept = (tmp_path / "run" / "budget.json").read_text()
    run = compare(config, tmp_path / "run", resume=True)
    assert (run.path / "budget.json").read_text() == kept
    found = ends(run)
    assert set(found) == {("full", 0), ("drop-muon:parts-4", 0)}


def test_seconds_end_a_trial_when_they_are_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every step takes 0.01 seconds."""
    ticks = count()
    monkeypatch.setattr("time.perf_counter", lambda: 0.01 * next(ticks))
    config, found = equal_cost(budget="seconds"), data.load("digits")
    budget = Budget("seconds", 2, 8, measured_budget(equal_cost(), found).operations, 0.055)
    initial = initial_model(config, found, 0)
    trial = Trial(config, config.method("full"), 0, found, initial, budget)
    trial.warm_up()
    trial.advance(1.0)
    assert trial.is_finished
    assert trial.step == 5
    assert trial.seconds == pytest.approx(0.05)


@pytest.mark.parametrize("budget", ["epochs", "ops", "seconds"])
def test_a_budget_below_one_step_is_refused_before_anything_is_written(
    tmp_path: Path, budget: str
) -> None:
    with pytest.raises(ValueError, match=r"at least one step of full, whose epoch has 4, got 0.01"):
        compare(equal_cost(budget=budget, epochs=0.01), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_budget_below_one_step_of_some_method_names_it(tmp_path: Path) -> None:
    options = {"full": {"batch_size": 100}, "adamw": {"batch_size": 1400}}
    config = equal_cost(methods=("full", "adamw"), options=options, epochs=0.07)
    with pytest.raises(ValueError, match=r"epochs must pay for one step of adamw, .* got 0.07"):
        compare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
