"""What bounds recommend, how surely, and what a plan then says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dropmuon import samplers
from dropmuon.planning import Option, Prediction
from dropmuon.planning.bounds.candidates import candidates
from dropmuon.planning.bounds.comparison import best_of
from dropmuon.theory import against_full, optimal_progressive
from tests.planning.synthetic_plans import plan_by_bounds, plan_of


def test_where_the_first_layer_has_the_largest_constant_dropping_gains_nothing() -> None:
    found = plan_of(full=[4.0, 2.0, 1.0], alone=[4.0, 2.0, 1.0])
    assert found.bounds.full_update_is_optimal
    progressive = next(o for o in found.options if o.name == "progressive, optimal")
    assert progressive.fresh.speedup == pytest.approx(1.0)


def test_no_gain_is_said_and_full_updates_are_recommended() -> None:
    found = plan_of(full=[4.0], alone=[4.0])
    assert not found.gain_expected
    assert found.sampler == samplers.Full()
    assert found.predicted_speedup == 1.0
    assert "No gain expected" in str(found)


def test_the_recommendation_is_the_option_with_the_least_cost_of_theory() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0, 9.0], alone=[0.5, 1.0, 2.0, 3.0])
    smoothness = found.smoothness.smooth
    fresh = found.costs.seconds.fresh()
    speedups = {
        each.family: 1 / against_full(each.sampler, fresh, smoothness).ratio
        for each in candidates(found.smoothness, fresh)
    }
    assert found.gain_expected
    assert found.best.name == max(speedups, key=lambda name: speedups[name])
    assert found.predicted_speedup == pytest.approx(max(speedups.values()))
    optimal = next(o for o in found.options if o.name == "progressive, optimal")
    matrix = smoothness.progressive_matrix(0)
    assert isinstance(optimal.sampler, samplers.Progressive)
    np.testing.assert_allclose(optimal.sampler.probabilities(4, 0.0), optimal_progressive(matrix))


def test_intervals_hold_the_prediction() -> None:
    for option in plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0]).options:
        for found in (option.fresh, option.reused):
            assert found is not None
            assert found.low <= found.speedup <= found.high


@pytest.mark.parametrize("points", [1, 2])
def test_a_gain_needs_three_points(points: int) -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0], points=points)
    fastest = max(found.options, key=lambda option: option.fresh.speedup).fresh
    assert fastest.speedup > 1.5
    assert (fastest.low, fastest.high) == (0.0, float("inf"))
    assert not found.gain_expected
    assert found.sampler == samplers.Full()
    assert f"smoothness was estimated at {points} of the 3 points" in str(found)
    assert "(unknown)" in str(found)
    assert found.plot().axes
    assert plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0], points=3).gain_expected


def test_an_option_that_is_sure_to_gain_comes_before_one_that_may_gain_more() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    sure = found.best
    wide = Option("wide", sure.settings, Prediction(99.0, 0.1, 9e4), sure.reused)
    full = found.options[0]
    assert best_of((full, wide, sure)) is sure
    assert best_of((full, wide)) is full
    assert str(wide.fresh) == "99.00x (unknown)"


def test_a_whole_round_of_timing_is_needed_and_its_absence_told() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    times = np.array([0.01, np.nan, 0.005])
    costs = replace(found.costs, rounds=0, seconds_by_cutoff=times)
    short = plan_by_bounds(costs, found.smoothness)
    assert found.gain_expected
    assert not short.gain_expected
    assert str(short).startswith("No verdict yet: there was time to measure 2 of 3 cutoffs")
    assert short.plot().get_suptitle() == "No verdict yet"
    (chosen,) = (line for line in str(short).splitlines() if "<- recommended" in line)
    assert chosen.startswith("full updates")


def test_costs_that_fit_badly_promise_no_gain() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    bad = plan_by_bounds(replace(found.costs, fit_error=3.0), found.smoothness)
    assert 1.5 < found.best.fresh.low < 4.0
    same = next(option.fresh for option in bad.options if option.name == found.best.name)
    assert same.speedup == found.best.fresh.speedup
    assert same.low == pytest.approx(found.best.fresh.low / 4.0)
    assert "Times are known only to within 300%" in str(bad)
    assert "Times are known" not in str(found)
    assert not bad.gain_expected


def test_a_prediction_that_a_floor_decides_is_marked() -> None:
    found = plan_of(full=[2.5, 2.5], alone=[0.0, 0.0])
    assert 20 < found.predicted_speedup < 100
    assert not found.best.fresh.bounded
    assert "x (not bounded by the measurements) as fast as full updates" in str(found)
    assert "count as 1% of the largest" in str(found)
    unused = plan_of(full=[1.0, 3.0, 9.0, 0.0], alone=[0.5, 1.0, 2.0, 0.0])
    progressive = next(o for o in unused.options if o.name == "progressive, optimal")
    assert progressive.fresh.bounded
    assert "not bounded" not in str(plan_of(full=[1.0, 3.0], alone=[0.5, 1.0]))
