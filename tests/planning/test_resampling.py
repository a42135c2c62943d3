"""Intervals of constants and predictions hold the truth about as often as they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from made_up import estimated, measured
from test_measured_costs import flat_operations, timings_of

from dropmuon import samplers, theory
from dropmuon.planning.candidates import Candidate
from dropmuon.planning.costs import fit_seconds
from dropmuon.planning.predictions import Predictor
from dropmuon.planning.resampling import ends, envelope_draws, smooth_draws

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

TRIALS = 300
FAMILY = [(0, 1, 2), (1, 2), (2,), (0,), (1,)]


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ratios up to 1, many of them close to it."""
    return rng.uniform(0.0, 1.0, shape)


def thin(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ratios up to 1, few of them close to it: the density falls to 0 there."""
    return rng.beta(2.0, 2.0, shape)


def plain_upper_end(ratios: np.ndarray, rng: np.random.Generator) -> float:
    n = len(ratios)
    return float(np.quantile(ratios[rng.integers(0, n, (200, n))].max(axis=1), 0.95))


@pytest.mark.parametrize(("draw", "least"), [(uniform, 0.85), (thin, 0.72)])
@pytest.mark.parametrize("points", [6, 8, 10, 12])
def test_nine_of_ten_intervals_should_hold_the_constant(draw: Draw, least: float, points: int):
    """The constant is 1. The plain bootstrap never gets there."""
    rng = np.random.default_rng(0)
    hits = plain = 0
    for trial in range(TRIALS):
        ratios = draw(rng, (points, 1))
        table = smooth_draws({(0,): ratios}, 1, 200, trial)[0,]
        low, high = ends(table, points, 0.9)[0]
        hits += low <= 1.0 <= high
        plain += plain_upper_end(ratios[:, 0], rng) >= 1.0
        assert ratios.max() <= low <= high <= 2 * ratios.max()
    assert plain == 0
    assert hits / TRIALS >= least


@pytest.mark.parametrize("draw", [uniform, thin])
@pytest.mark.parametrize("points", [6, 9, 12])
def test_intervals_of_predictions_hold_the_true_gain_more_often(draw: Draw, points: int):
    """Constants 2, 1, 4 when all move and 1 alone; one of the layers moves, all equally often.

    The true gain is max(2, 1, 4) / max_i(1 / p_i) = 4 / 3, all steps costing the same.
    """
    rng = np.random.default_rng(1)
    full, alone, p = np.array([2.0, 1.0, 4.0]), np.ones(3), np.full(3, 1 / 3)
    flat = theory.StepCosts(1.0, np.zeros(3), np.zeros(3), np.zeros(3))
    costs = replace(measured("abc"), seconds=flat)
    one = Candidate("one", samplers.Partition([[0], [1], [2]], p))
    truth = full.max() / (alone / p).max()
    hits = plain = 0
    for trial in range(TRIALS // 2):
        seen = full * draw(rng, (points, 3))
        single = np.minimum(alone * draw(rng, (points, 3)), seen)
        ratios = {(i,): np.where(np.arange(3) == i, single, np.nan) for i in range(3)}
        estimate = estimated(("a", "b", "c"), {(0, 1, 2): seen, **ratios}, np.ones((points, 3)))
        found = Predictor(estimate, costs, "smooth", trial).predict(one)
        hits += found.low <= truth <= found.high
        chosen = rng.integers(0, points, (100, points))
        most, least = seen[chosen].max(axis=1), single[chosen].max(axis=1)
        low, high = np.quantile(most.max(axis=1) / (least / p).max(axis=1), [0.05, 0.95])
        plain += low <= truth <= high
    assert hits / (TRIALS // 2) > 0.8
    assert hits / (TRIALS // 2) > plain / (TRIALS // 2) + 0.1


def test_intervals_of_predictions_hold_what_other_timings_predict():
    """Constants are certain; times are 5 % off, as it happens, and now and then much more."""
    rng = np.random.default_rng(3)
    true = theory.StepCosts(0.2, [1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [2.0, 1.0, 1.0])
    ratios = {s: np.where(np.isin(range(3), s), 1.0, np.nan) * np.ones((6, 1)) for s in FAMILY}
    estimate = estimated("abc", ratios, np.ones((6, 3)))
    one = Candidate("one", samplers.Partition([[0], [1], [2]], np.full(3, 1 / 3)))
    truth = Predictor(estimate, replace(measured("abc"), seconds=true), "smooth").predict(one)
    assert truth.low == truth.speedup == truth.high

    def noise() -> float:
        return abs(rng.normal(0.0, 0.2)) + (rng.exponential(3.0) if rng.random() < 0.1 else 0.0)

    hits = 0
    for trial in range(20):
        seen, draw = timings_of(true, 8, noise), np.random.default_rng(trial)
        fits = [
            fit_seconds(each, true.forward, flat_operations(3))
            for each in (seen, *(seen.resampled(8, draw) for _ in range(20)))
        ]
        costs = replace(measured("abc"), seconds=fits[0], resampled=tuple(fits[1:]))
        found = Predictor(estimate, costs, "smooth").predict(one)
        assert found.low < found.speedup < found.high
        hits += found.low <= truth.speedup <= found.high
    assert hits >= 0.75 * 20


def test_points_that_agree_leave_no_doubt():
    table = smooth_draws({(0,): np.full((6, 1), 3.0)}, 1, 50, 0)[0,]
    assert (table == 3.0).all()


@pytest.mark.parametrize("points", [1, 2])
def test_too_few_points_tell_nothing_of_the_upper_end(points: int):
    table = smooth_draws({(0,): np.full((points, 1), 3.0)}, 1, 50, 0)[0,]
    np.testing.assert_array_equal(ends(table, points, 0.9), [[0.0, np.inf]])


def test_draws_are_monotone_and_start_with_what_all_points_give():
    rng = np.random.default_rng(2)
    duals = rng.uniform(1.0, 2.0, (7, 3))
    sets = [(0, 1, 2), (1, 2), (2,), (0,), (0, 2)]
    ratios = {
        s: np.where(np.isin(np.arange(3), s), rng.uniform(1.0, 5.0, (7, 3)), np.nan) for s in sets
    }
    draws = [smooth_draws(ratios, 3, 40, 0), *envelope_draws(duals, ratios, 40, 0)]
    for found in draws:
        for small in sets:
            for large in sets:
                if set(small) <= set(large):
                    assert (found[small] <= found[large]).all()
    assert (draws[0][0, 1, 2][1:] <= draws[0][0, 1, 2][0]).all()
    np.testing.assert_allclose(
        draws[0][0, 1, 2][0], np.nanmax(np.concatenate(list(ratios.values())), axis=0)
    )
