"""Partitions: closed forms solve their programs, and tau follows the growth of constants."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.theory.complexity import Regime, iterations_generalized, smooth_weights
from dropmuon.theory.costs import Costs, cost_of_set, expected_cost
from dropmuon.theory.partitions import (
    TauFamily,
    best_tau,
    block_costs,
    contiguous_blocks,
    nice_factor,
    optimal_partition,
    same_position_blocks,
)
from dropmuon.theory.progressive import solve_covering_program
from dropmuon.theory.smoothness import NonMonotoneWarning, Smoothness
from tests.theory.progressive_instances import Array, amounts, simplex, step_costs

Blocks = tuple[tuple[int, ...], ...]
REGIMES: list[Regime] = ["smooth", "1/eps", "1/eps^2"]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Blocks, Array, Array, Costs]:
    """Draw any partition of up to 7 layers, L0 and L1 of each layer in its block, and costs."""
    b = draw(st.integers(1, 7))
    label = draw(st.lists(st.integers(0, 3), min_size=b, max_size=b))
    blocks = tuple(tuple(i for i in range(b) if label[i] == k) for k in sorted(set(label)))
    L0, L1 = (np.array(draw(st.lists(amounts, min_size=b, max_size=b))) for _ in range(2))
    return blocks, L0, L1, draw(step_costs(b))


def as_smoothness(blocks: Blocks, L0: Array, L1: Array) -> Smoothness:
    def rows(values: Array) -> dict[tuple[int, ...], Array]:
        return {B: np.where(np.isin(np.arange(len(L0)), B), values, 0.0) for B in blocks}

    return Smoothness(rows(L0), rows(L1))


@settings(max_examples=50)
@given(partitions())
def test_the_smooth_closed_form_solves_the_linear_program(
    case: tuple[Blocks, Array, Array, Costs],
) -> None:
    blocks, L0, _, costs = case
    weights = np.array([[0.5 / L0[i] * (i in B) for B in blocks] for i in range(len(L0))])
    program = solve_covering_program(weights, [cost_of_set(costs, B) for B in blocks])
    closed = optimal_partition(blocks, L0, costs)
    assert closed.cost == pytest.approx(program.cost, rel=1e-6)
    np.testing.assert_allclose(closed.probabilities, program.probabilities, atol=1e-6)


@settings(max_examples=50)
@given(partitions())
def test_the_generalized_closed_form_solves_its_linear_program_in_l1(
    case: tuple[Blocks, Array, Array, Costs],
) -> None:
    blocks, _, L1, costs = case
    weights = np.array([[1.0 / L1[i] * (i in B) for B in blocks] for i in range(len(L1))])
    program = solve_covering_program(weights, [cost_of_set(costs, B) for B in blocks])
    closed = optimal_partition(blocks, L1, costs, "1/eps")
    assert closed.cost == pytest.approx(program.cost, rel=1e-6)
    np.testing.assert_allclose(closed.probabilities, program.probabilities, atol=1e-6)


@settings(max_examples=40)
@given(partitions(), st.integers(0, 2**32 - 1))
def test_no_other_block_probabilities_cost_less_in_any_regime(
    case: tuple[Blocks, Array, Array, Costs], seed: int
) -> None:
    blocks, L0, L1, costs = case
    smoothness = as_smoothness(blocks, L0, L1)

    def price(p: Array, regime: Regime) -> float:
        sampling = dict(zip(blocks, p.tolist(), strict=True))
        step = expected_cost(sampling, costs)
        if regime == "smooth":
            return step / float(smooth_weights(sampling, smoothness).min())
        K = iterations_generalized(sampling, smoothness, gap=0.5, epsilon=1.0)
        return step * (K.linear if regime == "1/eps" else K.quadratic)

    for regime in REGIMES:
        closed = optimal_partition(blocks, smoothness, costs, regime)
        assert closed.cost == pytest.approx(price(closed.probabilities, regime))
        for other in simplex(seed, 5, len(blocks)) + 1e-9:
            for step in (1.0, 1e-3):
                p = (1 - step) * closed.probabilities + step * other / other.sum()
                assert price(p, regime) >= closed.cost * (1 - 1e-9)


@given(partitions())
def test_arrays_and_smoothness_say_the_same(case: tuple[Blocks, Array, Array, Costs]) -> None:
    blocks, L0, L1, costs = case
    smoothness = as_smoothness(blocks, L0, L1)
    for regime, constants in zip(REGIMES, [L0, L1, np.stack([L0, L1])], strict=True):
        one = optimal_partition(blocks, constants, costs, regime)
        two = optimal_partition(blocks, smoothness, costs, regime)
        assert one.cost == two.cost
        np.testing.assert_array_equal(one.probabilities, two.probabilities)


def test_block_costs_by_hand() -> None:
    costs = Costs(1.0, [10.0, 20.0, 40.0], [100.0, 200.0, 400.0])
    np.testing.assert_allclose(block_costs([(0, 2), (1,)], costs), [571.0, 261.0])


def test_contiguous_blocks_leave_the_rest_to_the_last() -> None:
    assert contiguous_blocks(5, 2) == ((0, 1), (2, 3), (4,))
    assert contiguous_blocks(4, 4) == ((0, 1, 2, 3),)


def test_same_position_blocks_of_transformers() -> None:
    assert same_position_blocks(3, 2) == ((0, 2, 4), (1, 3, 5))


def test_the_transformer_example_costs_what_the_paper_says() -> None:
    T, L, overhead = 4, 3, 0.7
    c, sharp, L0 = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.1, 0.9]), np.array([2.0, 7.0, 4.0])
    costs = Costs(overhead, np.tile(c, T), np.tile(sharp, T))
    expected = 2 * sum(
        L0[k] * (overhead + c[k:].sum() + (T - 1) * c.sum() + T * sharp[k]) for k in range(L)
    )
    solution = optimal_partition(same_position_blocks(T, L), np.tile(L0, T), costs)
    assert solution.cost == pytest.approx(expected)
    np.testing.assert_allclose(solution.probabilities, L0 / L0.sum())


@pytest.mark.parametrize("tau", [1, 2, 3, 5, 6])
def test_the_nice_factor_is_the_expected_cost_over_all_subsets(tau: int) -> None:
    rng = np.random.default_rng(tau)
    costs = Costs(rng.exponential(), *rng.exponential(size=(2, 6)))
    mean = np.mean([cost_of_set(costs, S) for S in combinations(range(6), tau)])
    assert nice_factor(tau, costs) == pytest.approx(6 / tau * mean)


@given(st.integers(2, 40).flatmap(step_costs))
def test_the_nice_factor_falls_with_tau(costs: Costs) -> None:
    B = [nice_factor(tau, costs) for tau in range(1, costs.num_layers + 1)]
    assert (np.diff(B) < 0).all()


def test_the_nice_factor_of_two_thousand_layers_is_exact() -> None:
    b = 2000
    costs = Costs(0.0, np.arange(b, 0, -1.0), np.zeros(b))
    for tau in (1, 2, 7, 300, 1000, 1990, 2000):
        total = math.comb(b, tau)
        reached = (1 - math.comb(b - j, tau) / total for j in range(1, b + 1))
        exact = b / tau * math.fsum(c * F for c, F in zip(costs.layer, reached, strict=True))
        assert nice_factor(tau, costs) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("family", ["nice", "partition"])
@pytest.mark.parametrize("regime", ["smooth", "1/eps"])
@settings(max_examples=25)
@given(costs=st.integers(1, 12).flatmap(step_costs))
def test_linear_growth_asks_for_single_layers_and_none_for_full_updates(
    family: TauFamily, regime: Regime, costs: Costs
) -> None:
    assert best_tau(family, "linear", costs, regime).tau == 1
    assert best_tau(family, "constant", costs, regime).tau == costs.num_layers


def test_growth_in_between_may_ask_for_a_tau_in_between() -> None:
    costs = Costs(1.0, np.ones(64), np.ones(64))
    assert 1 < best_tau("partition", "sqrt", costs).tau < 64


@pytest.mark.parametrize("regime", REGIMES)
def test_tau_nice_costs_come_from_the_general_formulas(regime: Regime) -> None:
    rng = np.random.default_rng(3)
    b = 5
    costs = Costs(rng.exponential(), *rng.exponential(size=(2, b)))
    L0, L1 = np.sort(rng.exponential(size=(2, b, b)), axis=2)
    choice = best_tau("nice", (L0, L1) if regime == "1/eps^2" else L0, costs, regime)
    for tau, cost in zip(choice.candidates, choice.candidate_costs, strict=True):
        sets = list(combinations(range(b), tau))
        sampling = dict.fromkeys(sets, 1 / len(sets))

        def rows(
            table: Array, tau: int = tau, sets: list[tuple[int, ...]] = sets
        ) -> dict[tuple[int, ...], Array]:
            return {S: np.where(np.isin(np.arange(b), S), table[:, tau - 1], 0.0) for S in sets}

        smoothness = Smoothness(rows(L0), rows(L1 if regime == "1/eps^2" else L0))
        step = expected_cost(sampling, costs)
        K = iterations_generalized(sampling, smoothness, gap=0.5, epsilon=1.0)
        expected = {
            "smooth": step / smooth_weights(sampling, smoothness).min(),
            "1/eps": step * K.linear,
            "1/eps^2": step * K.quadratic,
        }[regime]
        assert cost == pytest.approx(expected)
    assert choice.cost == choice.candidate_costs.min()
    assert choice.candidate_costs[choice.tau - 1] == choice.cost


def test_partitioned_costs_follow_the_closed_form_for_equal_layers() -> None:
    # Phi(tau) = 2 L(tau) (b / tau (c_ov + b c / 2) + b c / 2 + b c^sharp), section "Choosing tau"
    b, c, sharp, overhead = 12, 0.3, 0.2, 1.7
    costs = Costs(overhead, np.full(b, c), np.full(b, sharp))
    choice = best_tau("partition", math.sqrt, costs, taus=[1, 2, 3, 4, 6, 12])
    for tau, cost in zip(choice.candidates, choice.candidate_costs, strict=True):
        bracket = b / tau * (overhead + b * c / 2) + b * c / 2 + b * sharp
        assert cost == pytest.approx(2 * math.sqrt(tau) * bracket)


def test_a_shorter_last_block_has_the_constants_of_its_own_size() -> None:
    costs = Costs(1.0, [2.0, 4.0, 8.0], [16.0, 32.0, 64.0])
    # blocks (0, 1) and (2,): 2 * (1 + 14 + 48) * L(2) + 2 * (1 + 8 + 64) * L(1)
    choice = best_tau("partition", lambda tau: 10.0**tau, costs, taus=[2])
    assert choice.cost == pytest.approx(2 * 63 * 100 + 2 * 73 * 10)


def test_a_squared_partition_search_agrees_with_optimal_partition() -> None:
    rng = np.random.default_rng(5)
    costs = Costs(1.0, *rng.exponential(size=(2, 6)))
    L0, L1 = np.sort(rng.exponential(size=(2, 6, 6)), axis=2)
    choice = best_tau("partition", (L0, L1), costs, "1/eps^2")
    blocks = contiguous_blocks(6, 3)
    expected = optimal_partition(blocks, (L0[:, 2], L1[:, 2]), costs, "1/eps^2").cost
    assert choice.candidate_costs[2] == pytest.approx(expected)


def test_constants_that_fall_with_tau_warn() -> None:
    costs = Costs(1.0, [1.0, 1.0], [1.0, 1.0])
    with pytest.warns(NonMonotoneWarning, match="must not fall"):
        best_tau("nice", lambda tau: 1 / tau, costs)


ONE = Costs(1.0, [1.0], [1.0])
TWO = Costs(1.0, [1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("blocks", "constants", "message"),
    [
        ([(0,)], [1.0, 1.0], "layer 1 in 0"),
        ([(0, 1), (1,)], [1.0, 1.0], "layer 1 in 2"),
        ([], [1.0, 1.0], "layer 0 in 0"),
        ([(0,), ()], [1.0, 1.0], "at least one layer per set"),
        ([(0, 2)], [1.0, 1.0], "from 0 to 1"),
        ([(0, 1)], [1.0], "2 entries"),
        ([(0, 1)], [1.0, -1.0], "at least 0"),
        ([(0, 1)], [1.0, np.nan], "finite"),
        ([(0, 1)], [1.0, 0.0], "above 0"),
        ([(0, 1)], Smoothness.separable([1.0]), "of 2 layers, got 1"),
    ],
)
def test_bad_partitions_are_named(
    blocks: list[tuple[int, ...]], constants: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        optimal_partition(blocks, constants, TWO)  # type: ignore[arg-type]


def test_bad_choices_are_named() -> None:
    with pytest.raises(ValueError, match="regime must be one of"):
        optimal_partition([(0,)], [1.0], ONE, "smoth")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pair \(L0, L1\)"):
        optimal_partition([(0,)], [1.0], ONE, "1/eps^2")
    with pytest.raises(ValueError, match="family must be one of"):
        best_tau("nicer", "linear", ONE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="constants must be one of"):
        best_tau("nice", "cubic", ONE)
    with pytest.raises(ValueError, match=r"pair \(L0, L1\)"):
        best_tau("nice", "linear", ONE, "1/eps^2")
    with pytest.raises(ValueError, match=r"\(2, 2\), got \(1, 2\)"):
        best_tau("nice", [[1.0, 2.0]], TWO)
    with pytest.raises(ValueError, match="got nan for layer 0 and tau 2"):
        best_tau("nice", [[1.0, np.nan], [1.0, 1.0]], TWO)
    for taus in ([], [0], [3], [1.0]):
        with pytest.raises(ValueError, match="taus must be"):
            best_tau("nice", "linear", TWO, taus=taus)  # type: ignore[arg-type]
    for tau in (0, 3, 1.5, True):
        with pytest.raises(ValueError, match="tau must be a whole number from 1 to 2, got"):
            nice_factor(tau, TWO)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="tau must be a whole number from 1 to 2, got"):
            contiguous_blocks(2, tau)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_layers must be"):
        contiguous_blocks(0, 1)
    with pytest.raises(ValueError, match="T must be a whole number"):
        same_position_blocks(0, 2)
