"""The stochastic regime: K to leading order, K itself, and what follows for samplers."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon import samplers
from dropmuon.theory import (
    Costs,
    Smoothness,
    StochasticCase,
    against_full,
    best_tau,
    contiguous_blocks,
    expected_cost,
    iterations_stochastic,
    optimal_sets,
    relative_cost,
    stochastic_bound,
)
from tests.theory.progressive_instances import cutoff_probabilities, spread_constants

B = 4
COSTS = Costs(1.0, [3.0, 2.0, 2.0, 1.0], [0.5, 0.5, 1.0, 0.2])
cases = st.builds(
    StochasticCase,
    gap=st.floats(0.1, 10.0),
    sigma=st.lists(st.floats(0.0, 2.0), min_size=B, max_size=B),
    rho_low=st.floats(0.3, 1.0),
    rho_high=st.lists(st.floats(1.0, 4.0), min_size=B, max_size=B),
    repaired=st.booleans(),
)


@given(L0=spread_constants(B), L1=spread_constants(B), p=cutoff_probabilities(B), case=cases)
def test_relative_cost_is_the_limit_of_the_steps_that_are_required(
    L0: np.ndarray, L1: np.ndarray, p: np.ndarray, case: StochasticCase
) -> None:
    """K epsilon^4 as epsilon falls: terms of higher order fall as K^(-1/4)."""
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L0, L1)
    steps = relative_cost(sampler, COSTS, smoothness, "stochastic", case=case)
    steps /= expected_cost(sampler, COSTS)
    epsilon = (steps / 1e30) ** 0.25
    found = iterations_stochastic(sampler, smoothness, case, epsilon)
    assert found.total == pytest.approx(1e30, rel=1e-4)


@given(
    L0=spread_constants(B),
    L1=spread_constants(B),
    p=cutoff_probabilities(B),
    case=cases,
    weighted=st.booleans(),
)
def test_the_steps_are_just_enough(
    L0: np.ndarray, L1: np.ndarray, p: np.ndarray, case: StochasticCase, weighted: bool
) -> None:
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L0, L1)
    shortest = iterations_stochastic(sampler, smoothness, case, 1e12, weighted=weighted)
    assert shortest.total == 1
    epsilon = shortest.bound.total / 20.0
    found = iterations_stochastic(sampler, smoothness, case, epsilon, weighted=weighted)
    assert found.bound.total <= epsilon
    bound = stochastic_bound(
        *(sampler, smoothness, case.gap, found.total, found.eta),
        *case.per_layer(B),
        repaired=case.repaired,
    )
    moved = np.cumsum(p) * found.eta
    scale = 1.0 if weighted else moved.mean() / moved.min()
    assert found.bound.total == pytest.approx(scale * bound.total, rel=1e-9)
    assert found.bound.terms[found.bound.dominating] == max(found.bound.terms.values())


@given(L0=spread_constants(B), L1=spread_constants(B), p=cutoff_probabilities(B), case=cases)
def test_no_common_factor_of_the_radii_is_better(
    L0: np.ndarray, L1: np.ndarray, p: np.ndarray, case: StochasticCase
) -> None:
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L0, L1)
    found = iterations_stochastic(sampler, smoothness, case, 1e12, weighted=True)
    sigma, low, high = case.per_layer(B)
    for factor in (0.5, 0.9, 0.99):
        other = stochastic_bound(
            *(sampler, smoothness, case.gap, found.total, factor * found.eta, sigma, low, high),
            repaired=case.repaired,
        )
        assert other.total >= found.bound.total * (1 - 1e-9)


REGIMES: list[Any] = ["1/eps", "1/eps^2", "stochastic"]
Sets = list[tuple[int, ...]]
WINDOWS: Sets = [(0, 1), (1, 2), (2, 3)]
LISTS: dict[str, Sets] = {
    "suffixes": [tuple(range(s, B)) for s in range(B)],
    "windows": WINDOWS,
    "pairs": list(combinations(range(B), 2)),
}


def constants_of(sets: Sets, seed: int) -> Smoothness:
    """Positive constants that grow with the set."""
    rng = np.random.default_rng(seed)
    own = rng.lognormal(size=(2, B))
    tables: list[dict[tuple[int, ...], Any]] = [
        {s: np.where(np.isin(range(B), s), own[k] * len(s) ** 0.5, 0.0) for s in sets}
        for k in (0, 1)
    ]
    return Smoothness(*tables)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", LISTS)
def test_searched_probabilities_beat_random_ones_and_none_goes_below_the_bound(
    name: str, regime: Any
) -> None:
    rng = np.random.default_rng(0)
    for seed in range(4):
        smoothness = constants_of(LISTS[name], seed)
        case = StochasticCase(1.0, rng.uniform(0, 0.3, B), 1.0, rng.uniform(1, 3, B))
        found = optimal_sets(LISTS[name], smoothness, COSTS, regime, case)
        assert 0.0 <= found.gap < 1.0

        def cost(
            p: np.ndarray, smoothness: Smoothness = smoothness, case: StochasticCase = case
        ) -> float:
            drawn = {s: x for s, x in zip(LISTS[name], p.tolist(), strict=True) if x > 0}
            return relative_cost(drawn, COSTS, smoothness, regime, case=case)

        assert cost(found.probabilities) == pytest.approx(found.cost, rel=1e-9)
        for p in rng.dirichlet(np.full(len(LISTS[name]), 0.7), size=200):
            assert cost(p) >= found.cost * (1 - 1e-4)
            assert cost(p) >= found.lower_bound


def test_the_search_finds_what_is_known_in_closed_form() -> None:
    """Blocks in the 1/eps regime: p_k in proportion to the largest constant (`partitions`)."""
    blocks: Sets = [(0, 1), (2, 3)]
    smoothness = constants_of(blocks, 1)
    worst = np.array([smoothness.constants(1, block).max() for block in blocks])
    found = optimal_sets(blocks, smoothness, COSTS, "1/eps")
    np.testing.assert_allclose(found.probabilities, worst / worst.sum(), rtol=1e-3)
    assert found.gap < 1e-5


def test_smooth_layers_are_a_linear_program_with_no_gap() -> None:
    found = optimal_sets(WINDOWS, constants_of(WINDOWS, 0), COSTS)
    assert found.gap == 0.0
    drawn = dict(zip(WINDOWS, found.probabilities.tolist(), strict=True))
    cost = relative_cost(drawn, COSTS, constants_of(WINDOWS, 0))
    assert cost == pytest.approx(found.cost, rel=1e-9)


@pytest.mark.parametrize("tau", range(1, B + 1))
def test_best_tau_of_any_sets_is_the_relative_cost_of_nice_sampling(tau: int) -> None:
    rng = np.random.default_rng(0)
    L0, L1 = (np.cumsum(rng.uniform(0.1, 1, (B, B)), axis=1) for _ in range(2))
    case = StochasticCase(1.0, 0.1, 1.0, 2.0)
    chosen = best_tau("nice", (L0, L1), COSTS, "stochastic", case=case)
    sets = list(combinations(range(B), tau))
    tables: list[dict[tuple[int, ...], Any]] = [
        {s: np.where(np.isin(range(B), s), L[:, tau - 1], 0.0) for s in sets} for L in (L0, L1)
    ]
    smoothness = Smoothness(*tables)
    cost = relative_cost(samplers.Nice(tau), COSTS, smoothness, "stochastic", case=case)
    assert chosen.candidate_costs[tau - 1] == pytest.approx(cost, rel=1e-9)
    assert chosen.cost == chosen.candidate_costs.min()


def test_best_tau_of_blocks_has_their_searched_probabilities() -> None:
    case = StochasticCase(1.0, 0.1)
    chosen = best_tau("partition", ("sqrt", "sqrt"), COSTS, "stochastic", case=case)
    blocks = contiguous_blocks(B, 2)
    tables: list[dict[tuple[int, ...], Any]] = [
        {s: np.where(np.isin(range(B), s), math.sqrt(2), 0.0) for s in blocks} for _ in range(2)
    ]
    found = optimal_sets(blocks, Smoothness(*tables), COSTS, "stochastic", case)
    assert chosen.candidate_costs[1] == pytest.approx(found.cost, rel=1e-6)


def test_against_full_compares_in_the_stochastic_regime() -> None:
    smoothness = Smoothness.separable([1.0, 2.0, 4.0, 8.0], [0.5, 0.5, 1.0, 2.0])
    case = StochasticCase(2.0, 0.1)
    both = against_full(samplers.Progressive(), COSTS, smoothness, "stochastic", case=case)
    full = relative_cost(samplers.Full(), COSTS, smoothness, "stochastic", case=case)
    assert both.full == pytest.approx(full)
    assert both.sampled > both.full


WITHOUT_L1 = Smoothness.progressive(np.tri(B))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: StochasticCase(0.0, 1.0), "gap must be finite and above 0"),
        (lambda: StochasticCase(1.0, -1.0), "sigma must be"),
        (lambda: StochasticCase(1.0, 1.0, 0.0), "rho_low must be above 0"),
        (lambda: StochasticCase(1.0, [1.0, 2.0]).per_layer(3), "one entry per layer, 3, got 2"),
        (
            lambda: relative_cost(samplers.Full(), COSTS, WITHOUT_L1, "stochastic"),
            "needs a case, .* got None; give StochasticCase",
        ),
        (
            lambda: optimal_sets(LISTS["suffixes"], WITHOUT_L1, COSTS, "1/eps"),
            "must have L1 > 0 in regime",
        ),
    ],
)
def test_what_is_missing_is_named(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
