"""Predictions are those of theory, and their intervals hold the truth as often as promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon import samplers, theory
from dropmuon.planning.bounds.candidates import Candidate, positive_constants
from dropmuon.planning.bounds.predictions import Predictor
from dropmuon.planning.measured_costs import fit_seconds
from dropmuon.samplers.base import ActiveSet, FloatArray
from tests.planning.synthetic_plans import (
    Draw,
    costs_of,
    estimate_of,
    flat_operations,
    layer_names,
    often_near_one,
    random_plan,
    seldom_near_one,
    timings_of,
)

TRIALS = 300
REGIMES = ("smooth", "1/eps", "1/eps^2", "stochastic")
FAMILY = [(0, 1, 2), (1, 2), (2,), (0,), (1,)]


@pytest.mark.parametrize("regime", REGIMES)
@given(seed=st.integers(0, 2**16), b=st.integers(2, 6))
@settings(max_examples=8, deadline=None)
def test_predictions_are_those_of_theory(regime, seed, b):
    plan = random_plan(layer_names(b), seed, regime=regime)
    assert plan.bounds.applied_regime == regime
    constants, fresh = positive_constants(plan.smoothness, regime), plan.costs.seconds.fresh()
    for option in plan.options:
        case = plan.bounds.case
        compared = theory.against_full(option.sampler, fresh, constants, regime, case=case)
        assert option.fresh.speedup == pytest.approx(1 / compared.ratio)
        option.sampler.check(b)


@pytest.mark.parametrize("regime", REGIMES)
def test_moving_any_b_of_b_layers_is_full_updates(regime):
    plan = random_plan(layer_names(4), 0, regime=regime)
    predictor = Predictor(plan.smoothness, plan.costs, regime, case=plan.bounds.case)
    found = predictor.predict(Candidate("all", samplers.Nice(4)))
    assert found.speedup == found.low == found.high == 1.0


@pytest.mark.parametrize("draw", [often_near_one, seldom_near_one])
@pytest.mark.parametrize("points", [6, 9, 12])
def test_intervals_of_predictions_hold_the_true_gain_more_often(draw: Draw, points: int):
    """Constants 2, 1, 4 when all move and 1 alone; one of the layers moves, all equally often.

    The true gain is max(2, 1, 4) / max_i(1 / p_i) = 4 / 3, all steps costing the same.
    """
    rng = np.random.default_rng(1)
    full, alone, p = np.array([2.0, 1.0, 4.0]), np.ones(3), np.full(3, 1 / 3)
    flat = theory.StepCosts(1.0, np.zeros(3), np.zeros(3), np.zeros(3))
    costs = replace(costs_of("abc"), seconds=flat)
    one = Candidate("one", samplers.Partition([[0], [1], [2]], p))
    truth = full.max() / (alone / p).max()
    hits = plain = 0
    for trial in range(TRIALS // 2):
        seen = full * draw(rng, (points, 3))
        single = np.minimum(alone * draw(rng, (points, 3)), seen)
        ratios: dict[ActiveSet, FloatArray] = {(0, 1, 2): seen}
        ratios |= {(i,): np.where(np.arange(3) == i, single, np.nan) for i in range(3)}
        estimate = estimate_of(("a", "b", "c"), ratios, np.ones((points, 3)))
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
    estimate = estimate_of("abc", ratios, np.ones((6, 3)))
    one = Candidate("one", samplers.Partition([[0], [1], [2]], np.full(3, 1 / 3)))
    truth = Predictor(estimate, replace(costs_of("abc"), seconds=true), "smooth").predict(one)
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
        costs = replace(costs_of("abc"), seconds=fits[0], resampled=tuple(fits[1:]))
        found = Predictor(estimate, costs, "smooth").predict(one)
        assert found.low < found.speedup < found.high
        hits += found.low <= truth.speedup <= found.high
    assert hits >= 0.75 * 20
