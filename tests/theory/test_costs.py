"""Costs of steps: the paper's marginals, the readings of forward and backward, bad input."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.samplers import Sampler
from dropmuon.theory.costs import Costs, StepCosts, cost_of_set, expected_cost, tail_costs
from dropmuon.theory.distributions import distribution_of
from tests.theory.samplers_of_six import SAMPLERS, B

amounts = st.floats(0.0, 1e3, allow_subnormal=False)


def vectors(n: int) -> st.SearchStrategy[list[float]]:
    return st.lists(amounts, min_size=n, max_size=n)


costs_of_six = st.builds(Costs, st.floats(0.125, 10.0), vectors(B), vectors(B))
step_costs_of_six = st.builds(
    StepCosts, st.floats(0.125, 10.0), vectors(B), vectors(B), vectors(B), amounts
)
sets_of_six = st.sets(st.integers(0, B - 1), min_size=1)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@settings(max_examples=20)
@given(costs=costs_of_six, progress=st.sampled_from([0.0, 0.3, 1.0]))
def test_expected_cost_is_the_sum_over_the_support(
    sampler: Sampler, costs: Costs, progress: float
) -> None:
    distribution = distribution_of(sampler, B, progress)
    exact = math.fsum(p * cost_of_set(costs, s) for s, p in distribution.items())
    assert expected_cost(sampler, costs, progress) == pytest.approx(exact, rel=1e-12)
    assert expected_cost(distribution, costs) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_expected_cost_is_the_average_of_many_draws(sampler: Sampler) -> None:
    costs = Costs(1.0, [3.0, 1.0, 4.0, 1.0, 5.0, 9.0], [2.0, 7.0, 1.0, 8.0, 2.0, 8.0])
    rng = np.random.default_rng(0)
    drawn = np.array([cost_of_set(costs, sampler.sample(B, rng, 0.3)) for _ in range(2_000)])
    error = 5 * drawn.std() / math.sqrt(drawn.size) + 1e-12
    assert abs(drawn.mean() - expected_cost(sampler, costs, 0.3)) <= error


@given(costs=costs_of_six)
def test_tail_costs_are_the_costs_of_suffixes(costs: Costs) -> None:
    suffixes = [cost_of_set(costs, range(j, B)) for j in range(B)]
    np.testing.assert_allclose(tail_costs(costs), suffixes, rtol=1e-12)


@given(step=step_costs_of_six, active=sets_of_six)
def test_fresh_batches_pay_the_forward_pass_of_the_prefix(
    step: StepCosts, active: set[int]
) -> None:
    literal = step.overhead + step.batch + step.forward.sum() + step.backward[min(active) :].sum()
    literal += step.sharp[sorted(active)].sum()
    assert cost_of_set(step.fresh(), active) == pytest.approx(literal, rel=1e-12)


@given(step=step_costs_of_six, active=sets_of_six)
def test_the_papers_reading_pays_from_the_cutoff_on(step: StepCosts, active: set[int]) -> None:
    s = min(active)
    literal = step.overhead + step.batch + (step.forward + step.backward)[s:].sum()
    literal += step.sharp[sorted(active)].sum()
    assert cost_of_set(step.cached(), active) == pytest.approx(literal, rel=1e-12)


@given(step=step_costs_of_six, active=sets_of_six, r=st.integers(1, 20))
def test_reuse_pays_for_batch_and_prefix_once(step: StepCosts, active: set[int], r: int) -> None:
    s = min(active)
    total = step.batch + step.forward[:s].sum()
    for _ in range(r):
        total += step.overhead + (step.forward + step.backward)[s:].sum()
        total += step.sharp[sorted(active)].sum()
    assert r * cost_of_set(step.reused(r), active) == pytest.approx(total, rel=1e-9)


@given(step=step_costs_of_six, active=sets_of_six)
def test_more_reuse_costs_less_down_to_the_papers_reading(
    step: StepCosts, active: set[int]
) -> None:
    per_update = [cost_of_set(step.reused(r), active) for r in (1, 2, 5, 10**9)]
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(per_update))
    assert cost_of_set(step.cached(), active) - step.batch == pytest.approx(
        per_update[-1], rel=1e-5
    )


def test_costs_are_copies_that_nobody_can_write_to() -> None:
    layer = np.ones(2)
    costs = Costs(1, layer, [0, 0])
    layer[0] = 9.0
    assert costs.layer.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        costs.layer[0] = 2.0


def test_equal_costs_are_equal() -> None:
    assert Costs(1, [1, 2], [3, 4]) == Costs(1.0, (1.0, 2.0), np.array([3, 4]))
    assert hash(Costs(1, [1, 2], [3, 4])) == hash(Costs(1.0, (1.0, 2.0), np.array([3, 4])))
    assert Costs(1, [1, 2], [3, 4]) != Costs(1, [1, 2], [3, 5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, [1], [1]), "overhead must be finite and at least 0, got -1"),
        ((math.nan, [1], [1]), "overhead must be finite and at least 0, got nan"),
        ((1, [], []), "layer must not be empty"),
        ((1, [1, -2], [1, 1]), r"layer must be finite and at least 0, got -2.0 at index 1"),
        ((1, [1, 1], [1, math.nan]), "sharp must be finite and at least 0, got nan at index 1"),
        ((1, [1, math.inf], [1, 1]), "layer must be finite and at least 0, got inf"),
        ((1, [1, 1], [1]), "sharp must have 2 entries, got 1; give one per layer"),
        ((1, [[1, 1]], [1, 1]), r"layer must be one-dimensional, got shape \(1, 2\)"),
        ((1, ["a"], [1]), "layer must be numbers"),
        ((0, [0, 0], [0, 0]), "must not all be 0"),
    ],
)
def test_bad_costs_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Costs(*arguments)


def test_bad_step_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="backward must have 2 entries, got 1"):
        StepCosts(1, [1, 1], [1], [1, 1])
    with pytest.raises(ValueError, match="batch must be finite and at least 0, got -1"):
        StepCosts(1, [1], [1], [1], batch=-1)
    for updates in (0, 1.5, True):
        with pytest.raises(ValueError, match="updates must be a whole number of at least 1"):
            StepCosts(1, [1], [1], [1]).reused(updates)  # type: ignore[arg-type]


@pytest.mark.parametrize("active", [(), (2,), (-1,)])
def test_sets_outside_of_the_layers_are_refused(active: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="active must"):
        cost_of_set(Costs(1, [1, 1], [1, 1]), active)
