"""Deep models: what there is no time for is left out, and what is left is still a plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dropmuon.planning import Problem, SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.bounds.probe import planned_sets
from dropmuon.planning.timing import bisected
from tests.planning.synthetic_plans import costs_of, plan_by_bounds

DEPTH = 60


class Deep(nn.Module):
    """Layers of one number each, with the curvatures 1, 2, ...; every loss takes a second."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.full((1,), 9.0).double() for _ in range(depth))
        self.now = 0.0

    def forward(self) -> torch.Tensor:
        self.now += 1.0
        return sum((i + 1) * x.square().sum() / 2 for i, x in enumerate(self.layers))


def estimate(depth: int, budget: float, **arguments) -> tuple[SmoothnessEstimate, float]:
    model = Deep(depth)
    problem = Problem(model, lambda m, _: m(), [None])
    settings = {"lr": 0.1, "policy": "euclidean", "by": lambda name, parameter: name}
    chosen = arguments.pop("sets", planned_sets([f"layers.{i}" for i in range(depth)]))
    start = model.now
    found = estimate_smoothness(
        problem, settings, chosen, budget=budget, clock=lambda: model.now, **arguments
    )
    return found, model.now - start


def test_the_first_point_leaves_time_for_others_and_the_budget_is_kept():
    found, spent = estimate(DEPTH, budget=100.0)
    assert spent <= 101
    assert found.points >= 3
    assert 10 < len(found.ratios) < 30
    assert [s[0] for s in found.ratios] == bisected(DEPTH)[: len(found.ratios)]
    assert all(len(table) == found.points for table in found.ratios.values())


def test_a_machine_that_slows_down_costs_sets_and_not_points():
    model = Deep(DEPTH)
    problem = Problem(model, lambda m, _: m(), [None])
    settings = {"lr": 0.1, "policy": "euclidean", "by": lambda name, parameter: name}
    slow = estimate_smoothness(
        problem, settings, budget=100.0, clock=lambda: model.now + 5 * max(0.0, model.now - 25)
    )
    even, _ = estimate(DEPTH, budget=100.0)
    assert slow.points == 3
    assert 1 < len(slow.ratios) < len(even.ratios)
    assert list(slow.ratios) == list(even.ratios)[: len(slow.ratios)]
    assert all(len(table) == 3 for table in slow.ratios.values())


def test_with_time_enough_all_is_measured_at_all_points():
    found, _ = estimate(6, budget=1e4, points=5)
    assert list(found.ratios) == planned_sets([f"layers.{i}" for i in range(6)])
    assert found.points == 5


@pytest.mark.parametrize("budget", [0.5, 3.0])
def test_one_set_at_one_point_is_the_least(budget: float):
    found, spent = estimate(8, budget=budget)
    assert found.points <= 2
    assert len(found.ratios) <= 1
    assert next(iter(found.ratios)) == tuple(range(8))
    assert spent <= budget + 2


def test_by_default_cutoffs_are_bisected():
    found, _ = estimate(DEPTH, budget=60.0, sets=None)
    assert [s[0] for s in found.ratios] == bisected(DEPTH)[: len(found.ratios)]


def test_cutoffs_that_were_not_measured_have_the_constants_of_the_next_larger_set():
    found, _ = estimate(DEPTH, budget=40.0)
    cutoffs = sorted(s[0] for s in found.ratios)
    assert len(cutoffs) < DEPTH
    matrix, generalized = found.smooth.progressive_matrix(0), found.generalized
    for s in range(DEPTH):
        before = max(c for c in cutoffs if c <= s)
        np.testing.assert_array_equal(matrix[s:, s], matrix[s:, before])
        np.testing.assert_array_equal(
            generalized.constants(0, range(s, DEPTH))[s:],
            generalized.constants(0, range(before, DEPTH))[s:],
        )
    np.testing.assert_allclose(matrix[:, 0], np.arange(1, DEPTH + 1))


def test_a_plan_of_what_there_was_time_for_leaves_other_families_out():
    found, _ = estimate(DEPTH, budget=100.0)
    plan = plan_by_bounds(costs_of(found.layers), found)
    assert [o.name for o in plan.options] == [
        "full updates",
        "progressive, uniform",
        "progressive, optimal",
    ]
    count, planned = len(found.ratios), len(planned_sets(found.layers))
    assert f"There was time for {count} of {planned} sets of layers" in str(plan)


def test_progress_rises_to_one_also_when_cut_short():
    shares: list[float] = []
    estimate(DEPTH, budget=60.0, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
