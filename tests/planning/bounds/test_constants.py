"""Constants are monotone, above all ratios, and inside their intervals as often as promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from dropmuon.planning.bounds.constants import (
    interval_ends,
    resampled_generalized,
    resampled_smooth,
    upper_envelopes,
)
from tests.planning.synthetic_plans import Draw, often_near_one, seldom_near_one

TRIALS = 300


def excess_by_program(duals: np.ndarray, ratios: np.ndarray, counts: np.ndarray) -> float:
    used = counts > 0
    left = -np.stack([np.ones(used.sum()), duals[used]], axis=1)
    solved = linprog([counts.sum(), counts @ duals], left, -ratios[used], method="highs")
    assert solved.status == 0
    return float(solved.fun)


@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_envelope_solves_its_linear_program(n, seed):
    rng = np.random.default_rng(seed)
    duals, ratios = rng.integers(0, 6, n) / 2.0, rng.integers(0, 6, n) / 3.0
    counts = np.concatenate([np.ones((1, n), np.int64), rng.multinomial(n, [1 / n] * n, size=3)])
    l0, l1 = upper_envelopes(duals, ratios, counts)
    for k, row in enumerate(counts):
        line = l0[k] + l1[k] * duals
        assert min(l0[k], l1[k]) >= 0
        assert (line[row > 0] >= ratios[row > 0] - 1e-9).all()
        excess = row.sum() * l0[k] + (row @ duals) * l1[k]
        assert excess == pytest.approx(excess_by_program(duals, ratios, row), abs=1e-7)


def test_equal_gradients_tell_nothing_of_l1():
    l0, l1 = upper_envelopes(np.full(4, 2.0), np.arange(4.0), np.ones((1, 4), np.int64))
    assert (l0[0], l1[0]) == (3.0, 0.0)


def plain_upper_end(ratios: np.ndarray, rng: np.random.Generator) -> float:
    n = len(ratios)
    return float(np.quantile(ratios[rng.integers(0, n, (200, n))].max(axis=1), 0.95))


@pytest.mark.parametrize(("draw", "least"), [(often_near_one, 0.85), (seldom_near_one, 0.72)])
@pytest.mark.parametrize("points", [6, 8, 10, 12])
def test_nine_of_ten_intervals_should_hold_the_constant(draw: Draw, least: float, points: int):
    """The constant is 1. The plain bootstrap never gets there."""
    rng = np.random.default_rng(0)
    hits = plain = 0
    for trial in range(TRIALS):
        ratios = draw(rng, (points, 1))
        table = resampled_smooth({(0,): ratios}, 1, 200, trial)[0,]
        low, high = interval_ends(table, points, 0.9)[0]
        hits += low <= 1.0 <= high
        plain += plain_upper_end(ratios[:, 0], rng) >= 1.0
        assert ratios.max() <= low <= high <= 2 * ratios.max()
    assert plain == 0
    assert hits / TRIALS >= least


def test_points_that_agree_leave_no_doubt():
    table = resampled_smooth({(0,): np.full((6, 1), 3.0)}, 1, 50, 0)[0,]
    assert (table == 3.0).all()


@pytest.mark.parametrize("points", [1, 2])
def test_too_few_points_tell_nothing_of_the_upper_end(points: int):
    table = resampled_smooth({(0,): np.full((points, 1), 3.0)}, 1, 50, 0)[0,]
    np.testing.assert_array_equal(interval_ends(table, points, 0.9), [[0.0, np.inf]])


def test_draws_are_monotone_and_start_with_what_all_points_give():
    rng = np.random.default_rng(2)
    duals = rng.uniform(1.0, 2.0, (7, 3))
    sets = [(0, 1, 2), (1, 2), (2,), (0,), (0, 2)]
    ratios = {
        s: np.where(np.isin(np.arange(3), s), rng.uniform(1.0, 5.0, (7, 3)), np.nan) for s in sets
    }
    draws = [resampled_smooth(ratios, 3, 40, 0), *resampled_generalized(duals, ratios, 40, 0)]
    for found in draws:
        for small in sets:
            for large in sets:
                if set(small) <= set(large):
                    assert (found[small] <= found[large]).all()
    assert (draws[0][0, 1, 2][1:] <= draws[0][0, 1, 2][0]).all()
    np.testing.assert_allclose(
        draws[0][0, 1, 2][0], np.nanmax(np.concatenate(list(ratios.values())), axis=0)
    )
