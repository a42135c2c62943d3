"""Costs of steps: means over active sets, the readings of forward and backward, bad input."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import SupportsIndex

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon import samplers
from dropmuon.samplers import Sampler
from dropmuon.theory.costs import (
    Costs,
    StepCosts,
    cost_of_set,
    distribution_of,
    expected_cost,
    members,
    tail_costs,
)
from tests.theory.samplers_of_six import SAMPLERS, B

amounts = st.floats(0.0, 1e3, allow_subnormal=False)


def vectors(n: int) -> st.SearchStrategy[list[float]]:
    return st.lists(amounts, min_size=n, max_size=n)


costs_of_six = st.builds(Costs, st.floats(0.125, 10.0), vectors(B), vectors(B))
step_costs_of_six = st.builds(
    StepCosts, st.floats(0.125, 10.0), vectors(B), vectors(B), vectors(B), amounts, vectors(B)
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
    literal += (step.sharp + step.weight)[sorted(active)].sum()
    assert cost_of_set(step.fresh(), active) == pytest.approx(literal, rel=1e-12)


@given(step=step_costs_of_six, active=sets_of_six)
def test_the_papers_reading_pays_from_the_cutoff_on(step: StepCosts, active: set[int]) -> None:
    s = min(active)
    literal = step.overhead + step.batch + (step.forward + step.backward)[s:].sum()
    literal += (step.sharp + step.weight)[sorted(active)].sum()
    assert cost_of_set(step.cached(), active) == pytest.approx(literal, rel=1e-12)


@given(step=step_costs_of_six, active=sets_of_six, r=st.integers(1, 20))
def test_reuse_pays_for_batch_and_prefix_once(step: StepCosts, active: set[int], r: int) -> None:
    s = min(active)
    total = step.batch + step.forward[:s].sum()
    for _ in range(r):
        total += step.overhead + (step.forward + step.backward)[s:].sum()
        total += (step.sharp + step.weight)[sorted(active)].sum()
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
    with pytest.raises(ValueError, match="weight must have 2 entries"):
        StepCosts(1, [1, 1], [1, 1], [1, 1], weight=[1])
    for updates in (0, 1.5, True):
        with pytest.raises(ValueError, match="updates must be a whole number of at least 1"):
            StepCosts(1, [1], [1], [1]).reused(updates)  # type: ignore[arg-type]


@pytest.mark.parametrize("active", [(), (2,), (-1,)])
def test_sets_outside_of_the_layers_are_refused(active: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="active must"):
        cost_of_set(Costs(1, [1, 1], [1, 1]), active)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_distribution_of_each_sampler_has_its_marginals(
    sampler: Sampler, progress: float
) -> None:
    distribution = distribution_of(sampler, B, progress)
    inside, p = members(distribution, B), np.array([*distribution.values()])
    F, Q = p @ np.maximum.accumulate(inside, axis=1), p @ inside
    expected_F, expected_Q = sampler.marginals(B, progress)
    np.testing.assert_allclose(F, expected_F, atol=1e-12)
    np.testing.assert_allclose(Q, expected_Q, atol=1e-12)
    assert math.fsum(distribution.values()) == pytest.approx(1.0, abs=1e-12)
    assert set(distribution) <= set(sampler.support(B))


def test_sets_with_equal_marginals_keep_their_own_probabilities() -> None:
    e, u = 0.1, 1 / 6
    pairs: dict[Iterable[SupportsIndex], float] = {
        (0, 1): u,
        (0, 2): u - e,
        (0, 3): u + e,
        (1, 2): u + e,
        (1, 3): u - e,
        (2, 3): u,
    }
    skewed = samplers.Arbitrary(pairs)
    nice = samplers.Nice(2)
    for left, right in zip(skewed.marginals(4), nice.marginals(4), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-15)
    assert distribution_of(skewed, 4) == pytest.approx(pairs)
    assert set(distribution_of(nice, 4).values()) == {u}


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ({(0,): 0.5}, "distribution must sum to 1, got 0.5"),
        ({(0,): 1.5, (1,): -0.5}, "probabilities of at least 0, got -0.5"),
        ({(0,): math.nan}, "probabilities of at least 0, got nan"),
        ({(0, 2): 1.0}, "layer indices from 0 to 1"),
        ({(): 1.0}, "must name at least one layer"),
        ({(0, 0): 1.0}, "must name a layer once"),
        ({(0, 1): 0.5, (1, 0): 0.5}, "must name a set once"),
        ({("a",): 1.0}, "must hold layer indices"),
    ],
)
def test_bad_distributions_are_refused(distribution: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expected_cost(distribution, Costs(1, [1, 1], [1, 1]))


def test_a_sampler_whose_distribution_is_none_is_refused() -> None:
    class Half(samplers.Full):
        def distribution(
            self, num_layers: int, progress: float = 0.0
        ) -> dict[tuple[int, ...], float]:
            return {tuple(range(num_layers)): 0.5}

    with pytest.raises(ValueError, match=r"distribution must sum to 1, got 0\.5"):
        distribution_of(Half(), 2)


def test_what_is_neither_a_sampler_nor_a_mapping_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a Sampler or map sets .*, got 'full'"):
        distribution_of("full", 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a Sampler or map sets .*, got 'full'"):
        expected_cost("full", Costs(1, [1, 1], [1, 1]))  # type: ignore[arg-type]


def test_members_has_a_row_per_set_and_a_column_per_layer() -> None:
    assert members([(0, 2), (1,)], 3).tolist() == [[True, False, True], [False, True, False]]
