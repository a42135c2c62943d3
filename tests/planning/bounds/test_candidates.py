"""Laws that the candidates of a plan obey, in every regime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon import samplers, theory
from dropmuon.planning.bounds.active_sets import planned_sets
from dropmuon.planning.bounds.candidates import positive_constants
from tests.planning.synthetic_plans import (
    costs_of,
    estimate_of,
    layer_names,
    plan_by_bounds,
    plan_of,
    random_plan,
    speedups,
    transformer_layers,
)

REGIMES = ("smooth", "1/eps", "1/eps^2", "stochastic")
seeds = st.integers(0, 2**16)


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
