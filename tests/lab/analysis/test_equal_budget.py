"""The equal tuning budget, compared with counting all draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.lab.analysis.equal_budget import expected_best, tasks
from dropmuon.lab.analysis.wording import headings, overall, winner
from dropmuon.lab.run import RunDirectory
from tests.lab.synthetic_runs import write_run

FIRST = "was the first to reach 95 % test accuracy"

scores = st.lists(st.floats(0, 1) | st.just(-math.inf), min_size=1, max_size=7)


@given(scores, st.data())
def test_the_closed_form_is_the_mean_over_all_draws(values, data):
    draws = data.draw(st.integers(1, len(values)))
    best = [max(drawn) for drawn in itertools.combinations(values, draws)]
    good = [value for value in best if math.isfinite(value)]
    expected, chance = expected_best(values, draws)
    assert chance == pytest.approx(len(good) / len(best))
    if good:
        assert expected == pytest.approx(sum(good) / len(good))
    else:
        assert expected is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=7))
def test_more_draws_are_never_worse_and_all_draws_give_the_best(values):
    expected = [expected_best(values, draws)[0] for draws in range(1, len(values) + 1)]
    assert all(one <= other + 1e-12 for one, other in itertools.pairwise(expected))
    assert expected[-1] == max(values)


def test_more_draws_than_values_are_refused():
    with pytest.raises(
        ValueError, match=r"draws must lie in \[1, 2\], the number of values, got 3"
    ):
        expected_best([0.1, 0.2], 3)


def test_a_method_that_was_tried_more_often_gains_nothing(tmp_path):
    both, one = ("muon", "drop-muon:uniform"), ("drop-muon:uniform",)
    runs = [
        write_run(tmp_path / "a", methods=both, lr=0.1),
        write_run(tmp_path / "b", methods=one, lr=0.2, shift=-0.02),
        write_run(tmp_path / "c", methods=one, lr=0.4, shift=-0.04),
    ]
    (task,) = tasks(runs)
    muon, uniform = task.methods
    assert (task.budget, muon.tried, uniform.tried) == (1, 1, 3)
    assert task.varied == ("lr",)
    assert uniform.best.settings["lr"] == 0.1
    assert uniform.expected_test < uniform.best.test
    assert muon.expected_test == muon.best.test
    assert winner(task) == overall([task])


def test_other_data_models_or_lengths_are_other_tasks_and_options_other_configurations(tmp_path):
    options = {"drop-muon:uniform": {"lr": 0.01}}
    runs = [
        write_run(tmp_path / "a", seeds=1),
        write_run(tmp_path / "b", seeds=1, first_seed=1, options=options),
        write_run(tmp_path / "c", seeds=1, dataset="mnist"),
        write_run(tmp_path / "d", seeds=1, epochs=4),
        write_run(tmp_path / "e", seeds=1, threads=2),
        write_run(tmp_path / "f", seeds=1, evaluations_per_epoch=4),
        write_run(tmp_path / "g", seeds=1, train_examples=500),
    ]
    found = tasks(runs)
    assert [task.runs for task in found] == [("a", "b"), *((name,) for name in "cdefg")]
    assert headings(found)[1].startswith("mnist")
    end = "evaluations per epoch 2 · threads default · train examples 10000"
    assert headings(found)[0].endswith(end)
    assert len(set(headings(found))) == len(found)
    tried = {tuned.method: tuned.tried for tuned in found[0].methods}
    assert (tried["muon"], tried["drop-muon:uniform"]) == (1, 2)
    assert {tuned.best.seeds for tuned in found[0].methods if tuned.method == "muon"} == {2}


def test_configurations_are_what_a_method_used_and_not_what_others_shared(tmp_path):
    runs = [
        write_run(
            tmp_path / f"lr-{lr}",
            methods=("muon", "adamw"),
            lr=lr,
            shift=-lr,
            settings={"muon": {"lr": lr, "momentum": 0.5}, "adamw": {"lr": 0.001}},
        )
        for lr in (0.1, 0.03, 0.01)
    ]
    (task,) = tasks(runs)
    muon, adamw = task.methods
    assert (task.budget, muon.tried, adamw.tried) == (1, 3, 1)
    assert muon.best.settings == {"lr": 0.01, "momentum": 0.5, "batch_size": 512}
    assert adamw.best.settings == {"lr": 0.001, "batch_size": 512}
    assert adamw.best.seeds == 3
    assert adamw.best.runs == ("lr-0.1",)
    assert task.varied == ("lr",)


def test_other_batch_sizes_are_other_configurations_and_other_seeds_are_not(tmp_path):
    options: dict[str, Any] = {"methods": ("muon",), "seeds": 2, "settings": {"muon": {"lr": 0.1}}}
    runs = [
        write_run(tmp_path / "a", **options),
        write_run(tmp_path / "b", first_seed=1, **options),
        write_run(tmp_path / "c", batch_size=64, shift=-0.1, **options),
    ]
    (task,) = tasks(runs)
    (muon,) = task.methods
    assert (muon.tried, task.varied) == (2, ("batch_size",))
    assert (muon.best.seeds, muon.best.runs) == (3, ("a", "b"))


def test_a_directory_that_is_given_twice_counts_once(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", lr=0.2)]
    again = [*runs, RunDirectory(tmp_path / "b" / ".." / "a")]
    assert tasks(again) == tasks(runs)


def paced(run: RunDirectory, **seconds: Callable[[int], float]) -> RunDirectory:
    """The run with steps of so many seconds by method and seed, all equally good per epoch."""
    run.rewrite(
        replace(e, seconds=e.step * seconds[e.method](e.seed), test_accuracy=e.epoch / 10)
        for e in run.evaluations()
    )
    return run


@pytest.mark.parametrize(
    ("muon", "adamw", "expected"),
    [
        (lambda _: 1.0, lambda _: 1.04, "muon and adamw reached 95 % test accuracy in about"),
        (
            lambda s: 1.0 + s,
            lambda s: 1.5 + s,
            "muon and adamw reached 95 % test accuracy in about",
        ),
        (
            lambda _: 1.0,
            lambda _: 1.06,
            f"muon {FIRST}: 6.3 min, against",
        ),
        (
            lambda s: 5.0 + s,
            lambda s: 2.0 + s,
            f"adamw {FIRST}: 19.0 min",
        ),
    ],
    ids=["within 5 %", "seeds overlap", "beyond 5 %", "seeds apart"],
)
def test_a_winner_is_named_only_where_seeds_tell_it_from_the_next(tmp_path, muon, adamw, expected):
    run = paced(write_run(tmp_path / "a", methods=("muon", "adamw")), muon=muon, adamw=adamw)
    (task,) = tasks([run])
    assert winner(task).startswith(expected)
    clear = "no clear winner in 2" if "about" in expected else f"{expected.split()[0]} in 2"
    assert overall([task, task]) == f"First to reach the target in 2 tasks: {clear}."


def test_a_method_that_often_misses_is_not_called_soonest(tmp_path):
    names = ("muon", "adamw")
    runs = [
        paced(write_run(tmp_path / "a", methods=names), muon=lambda _: 2.0, adamw=lambda _: 1.0),
        write_run(tmp_path / "b", methods=("adamw",), lr=0.2, shift=-0.5),
    ]
    (task,) = tasks(runs)
    assert winner(task) == (
        "muon reached 95 % test accuracy most reliably, in 12.7 min; adamw took 6.3 min but missed "
        "it in 50 % of draws (one configuration each)."
    )


def test_interrupted_trials_do_not_count(tmp_path):
    stop = {("muon", 0): 3, ("muon", 1): 3, ("muon", 2): 3}
    (task,) = tasks([write_run(tmp_path / "a", methods=("muon", "adamw"), stop=stop)])
    assert [tuned.method for tuned in task.methods] == ["adamw"]
    (nothing,) = tasks([write_run(tmp_path / "b", methods=("muon",), stop=stop)])
    assert winner(nothing) == "No trial is finished yet."


def test_other_classes_are_another_task_and_all_of_them_are_no_setting(tmp_path):
    runs = [
        write_run(tmp_path / "earlier"),
        write_run(tmp_path / "whole", classes=[]),
        write_run(tmp_path / "part", classes=[0, 1]),
    ]
    whole, part = tasks(runs)
    assert (len(whole.runs), len(part.runs)) == (2, 1)
    titles = headings([whole, part])
    assert "classes" not in titles[0]
    assert "classes 0,1" in titles[1]
