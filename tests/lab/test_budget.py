"""The equal tuning budget against counting all draws."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import write_run

from dropmuon.lab.reporting.budget import expected_best, groups
from dropmuon.lab.reporting.sentences import overall, winner

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
    (group,) = groups(runs)
    muon, uniform = group.methods
    assert (group.budget, muon.tried, uniform.tried) == (1, 1, 3)
    assert group.varied == ("lr",)
    assert uniform.best.settings["lr"] == 0.1
    assert uniform.expected_test < uniform.best.test
    assert muon.expected_test == muon.best.test
    assert winner(group) == overall([group])


def test_other_data_models_or_lengths_are_other_tasks_and_options_other_configurations(tmp_path):
    options = {"drop-muon:uniform": {"lr": 0.01}}
    runs = [
        write_run(tmp_path / "a", seeds=1),
        write_run(tmp_path / "b", seeds=1, options=options),
        write_run(tmp_path / "c", seeds=1, dataset="mnist"),
        write_run(tmp_path / "d", seeds=1, epochs=4),
    ]
    found = groups(runs)
    assert [group.runs for group in found] == [("a", "b"), ("c",), ("d",)]
    tried = {tuned.method: tuned.tried for tuned in found[0].methods}
    assert (tried["muon"], tried["drop-muon:uniform"]) == (1, 2)
    assert {tuned.best.seeds for tuned in found[0].methods if tuned.method == "muon"} == {2}


def test_interrupted_trials_do_not_count(tmp_path):
    stop = {("muon", 0): 3, ("muon", 1): 3, ("muon", 2): 3}
    (group,) = groups([write_run(tmp_path / "a", methods=("muon", "adamw"), stop=stop)])
    assert [tuned.method for tuned in group.methods] == ["adamw"]
    (nothing,) = groups([write_run(tmp_path / "b", methods=("muon",), stop=stop)])
    assert winner(nothing) == "No trial has gone through all epochs yet."
