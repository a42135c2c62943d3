"""Functions whose constants are known: the plan is the one that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dropmuon import samplers
from dropmuon.planning import Plan, Problem, estimate_smoothness
from dropmuon.planning.bounds.probe import planned_sets
from dropmuon.theory import Regime, StepCosts
from tests.planning.synthetic_plans import costs_of, plan_by_bounds, speedups


class Sum(nn.Module):
    """A sum of functions of one vector each: a layer's constants are the same in every set."""

    def __init__(self, parts: Sequence[Callable[..., Tensor]], start: float) -> None:
        super().__init__()
        self.parts = parts
        self.layers = nn.ParameterList(torch.full((2,), start).double() for _ in parts)

    def forward(self) -> Tensor:
        values = [f(x) for f, x in zip(self.parts, self.layers, strict=True)]
        return torch.stack(values).sum()


def planned(
    parts: Sequence[Callable[..., Tensor]], costs: StepCosts, regime: Regime, start: float
) -> Plan:
    problem = Problem(Sum(parts, start), lambda model, _: model(), [None])
    settings = {"lr": 0.1, "policy": "euclidean", "by": lambda name, parameter: name}
    names = [f"layers.{i}" for i in range(len(parts))]
    estimate = estimate_smoothness(problem, settings, planned_sets(names), points=6)
    made = replace(costs_of(names), seconds=costs)
    return plan_by_bounds(made, estimate, regime=regime)


def quadratics(curvatures: list[float], costs: StepCosts) -> Plan:
    parts = [lambda x, a=a: a * x.square().sum() / 2 for a in curvatures]
    return planned(parts, costs, "smooth", 10.0)


def sharp_only(b: int) -> StepCosts:
    """A set costs the sum over its layers, wherever they are."""
    return StepCosts(0.0, np.zeros(b), np.zeros(b), np.arange(1.0, b + 1))


def backward_only(b: int) -> StepCosts:
    """A set costs what lies behind its first layer."""
    return StepCosts(0.0, np.zeros(b), np.arange(1.0, b + 1), np.zeros(b))


def test_without_shared_costs_each_layer_alone_is_best():
    """Layer i must be drawn in proportion to a_i at least, which only single layers do exactly."""
    a, price = np.array([8.0, 4.0, 2.0, 1.0]), np.arange(1.0, 5.0)
    plan = quadratics(a.tolist(), sharp_only(4))
    assert plan.best.name == "blocks of 1, optimal"
    assert plan.gain_expected
    np.testing.assert_allclose(plan.sampler.marginals(4)[1], a / a.sum())
    assert plan.predicted_speedup == pytest.approx(a.max() * price.sum() / (a @ price))


def test_where_all_is_paid_for_reaching_the_first_layer_full_updates_are_best():
    """The first layer has the largest constant: reached that often, the others come for free."""
    plan = quadratics([8.0, 4.0, 2.0, 1.0], backward_only(4))
    assert not plan.gain_expected
    assert plan.bounds.full_update_is_optimal
    assert plan.sampler == samplers.Full()
    assert max(speedups(plan).values()) == pytest.approx(1.0)


def test_constants_that_rise_are_served_by_cutoffs_in_proportion_to_their_steps():
    """P(i moves) is in proportion to a_i: cutoffs have the increments 1, 1, 2, 4 of a."""
    plan = quadratics([1.0, 2.0, 4.0, 8.0], backward_only(4))
    assert plan.best.name == "progressive, optimal"
    np.testing.assert_allclose(plan.sampler.marginals(4)[1], np.array([1, 2, 4, 8]) / 8)
    speedup = 8 * 10 / (1 * 1 + 2 * 2 + 4 * 3 + 8 * 4)
    assert plan.predicted_speedup == pytest.approx(speedup, rel=1e-6)


def test_exponentials_are_planned_by_l1():
    """exp(c x) + exp(c y) at x = y has L1 = (1 - exp(-c t / sqrt(2))) / t in steps of length t."""
    rates = [0.9, 0.6, 0.3]
    parts = [lambda x, c=c: torch.exp(c * x).sum() for c in rates]
    plan = planned(parts, sharp_only(3), "1/eps", 4.0)
    slopes = plan.smoothness.generalized.constants(1, (0, 1, 2))
    assert plan.bounds.applied_regime == "1/eps"
    np.testing.assert_allclose(slopes, (1 - np.exp(-np.array(rates) * 0.1 / 2**0.5)) / 0.1)
    assert plan.best.name == "blocks of 1, optimal"
    np.testing.assert_allclose(plan.sampler.marginals(3)[1], slopes / slopes.sum(), rtol=1e-6)
    price = np.arange(1.0, 4.0)
    assert plan.predicted_speedup == pytest.approx(slopes.max() * 6 / (slopes @ price), rel=1e-6)
