"""Laws that the candidates of a plan obey in every regime, and their predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon import samplers, theory
from dropmuon.planning.bounds.candidates import Candidate, Predictor, positive_constants
from dropmuon.planning.bounds.probe import planned_sets
from dropmuon.planning.measured_costs import fit_seconds
from dropmuon.samplers.base import ActiveSet, FloatArray
from tests.planning.synthetic_plans import (
    Draw,
    costs_of,
    estimate_of,
    flat_operations,
    layer_names,
    often_near_one,
    plan_by_bounds,
    plan_of,
    random_plan,
    seldom_near_one,
    speedups,
    timings_of,
    transformer_layers,
)

REGIMES = ("smooth", "1/eps", "1/eps^2", "stochastic")
seeds = st.integers(0, 2**16)

TRIALS = 300
FAMILY = [(0, 1, 2), (1, 2), (2,), (0,), (1,)]


@pytest.mark.parametrize("regime", REGIMES)
@given(seed=seeds, b=st.integers(2, 8))
@settings(max_examples=15, deadline=None)
def test_optimal_progressive_is_no_worse_than_uniform_and_full(regime, seed, b):
    found = speedups(random_plan(layer_names(b), seed, regime=regime))
    best = found["progressive, optimal"] * (1 + 1e-6)
    assert best >= found["progressive, uniform"]
    assert best >= found["full updates"] == 1.0


@given(seed=seeds, tau=st.sampled_from([2, 4]), times=st.integers(2, 3))
@settings(max_examples=20, deadline=None)
def test_windows_are_no_worse_than_the_blocks_among_them(seed, tau, times):
    found = speedups(random_plan(layer_names(tau * times), seed))
    assert found[f"windows of {tau}, optimal"] >= found[f"blocks of {tau}, optimal"] * (1 - 1e-6)


@given(seed=seeds, b=st.integers(3, 9))
@pytest.mark.parametrize("regime", REGIMES)
@settings(max_examples=8, deadline=None)
def test_windows_at_their_best_are_no_worse_than_uniform_ones(regime, seed, b):
    plan = random_plan(layer_names(b), seed, regime=regime)
    smoothness, fresh = positive_constants(plan.smoothness, regime), plan.costs.seconds.fresh()
    case = plan.bounds.case
    uniform = theory.against_full(samplers.Submodel(2), fresh, smoothness, regime, case=case)
    assert speedups(plan)["windows of 2, optimal"] >= (1 - 1e-6) / uniform.ratio


def test_windows_that_are_never_drawn_are_no_obstacle():
    """Only the first and the last of three windows are needed where neighbours do not interact."""
    layers = layer_names(4)
    ratios = {
        s: np.where(np.isin(np.arange(4), s), [[4.0, 4.0, 1.0, 1.0]] * 4, np.nan)
        for s in planned_sets(layers)
    }
    plan = plan_by_bounds(costs_of(layers), estimate_of(layers, ratios, np.ones((4, 4))))
    found = next(o for o in plan.options if o.name == "windows of 2, optimal")
    assert isinstance(found.sampler, samplers.Submodel)
    np.testing.assert_allclose(found.sampler.probabilities(3, 0.0), [0.8, 0.0, 0.2], atol=1e-9)
    found.sampler.check(4)


def test_families_follow_from_what_was_measured():
    found = speedups(random_plan(transformer_layers(2), 1))
    assert "same position in all blocks, optimal" in found
    assert {"any 2 layers, uniform", "any 5 layers, uniform", "windows of 4, optimal"} <= set(found)
    plan = random_plan(layer_names(6), 1)
    few = {s: t for s, t in plan.smoothness.ratios.items() if s == tuple(range(s[0], 6))}
    cut = plan_by_bounds(
        costs_of(layer_names(6)), estimate_of(layer_names(6), few, plan.smoothness.duals)
    )
    assert list(speedups(cut)) == ["full updates", "progressive, uniform", "progressive, optimal"]
    assert "There was time for 6 of" in str(cut)


def test_layers_of_one_position_that_hardly_interact_are_best_moved_together():
    """The example of the paper: its blocks have small constants, and all that moves more has large.

    Only sharp operators cost, so that nothing is paid for reaching the first block.
    """
    layers = transformer_layers(3)[1:-1]
    ratios = {}
    for s in planned_sets(layers):
        same = len({i % 2 for i in s}) == 1
        ratios[s] = np.where(
            np.isin(np.arange(6), s), np.full((4, 6), 1.0 if same else 9.0), np.nan
        )
    estimate = estimate_of(layers, ratios, np.ones((4, 6)))
    costs = theory.StepCosts(1.0, np.zeros(6), np.zeros(6), np.full(6, 0.1))
    made = costs_of(layers)
    plan = plan_by_bounds(type(made)(**{**vars(made), "seconds": costs}), estimate)
    assert plan.best.name == "same position in all blocks, optimal"
    assert isinstance(plan.sampler, samplers.Partition)
    assert plan.sampler.blocks == ((0, 2, 4), (1, 3, 5))
    assert plan.predicted_speedup == pytest.approx(9.0 * 1.6 / (2 * 1.3))


@pytest.mark.parametrize("regime", REGIMES)
def test_constants_of_zero_are_no_obstacle(regime):
    plan = plan_of(full=[0.0, 3.0, 1.0], alone=[0.0, 0.0, 1.0], regime=regime)
    assert all(np.isfinite(option.fresh.speedup) for option in plan.options)
    assert all(np.isfinite(o.fresh.speedup) for o in plan_of([0.0] * 3, [0.0] * 3).options)


@pytest.mark.parametrize("regime", ["1/eps", "1/eps^2"])
def test_without_l1_the_smooth_case_applies_and_is_said(regime):
    smooth = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    plan = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0], regime=regime)
    assert (plan.bounds.regime, plan.bounds.applied_regime) == (regime, "smooth")
    assert speedups(plan) == speedups(smooth)
    assert "showed no (L0, L1) behaviour" in str(plan)
    assert "showed no" not in str(smooth)


def test_the_gap_of_the_quadratic_regime_is_told():
    plan = random_plan(layer_names(5), 3, regime="1/eps^2")
    gap = next(o.gap for o in plan.options if "progressive, optimal" in o.name)
    assert 0 < gap < 1
    assert f"up to {gap:.1%} less time" in str(plan)
    assert "1/eps^2 regime" in str(plan)
    assert all(o.gap < 1e-6 for o in random_plan(layer_names(5), 3, regime="1/eps").options)


def test_the_stochastic_regime_says_what_it_rests_on():
    plan = random_plan(layer_names(4), 3, regime="stochastic")
    for words in ("stochastic case, 1/eps^4", "counts as 1, the loss at the start", "by 0.1 to"):
        assert words in str(plan)
    with pytest.raises(ValueError, match=r"step_rule depends on the number of steps .*Horizon"):
        _ = plan.step_rule


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
