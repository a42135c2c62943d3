"""The linear program confirms the recursion, and refuses what has no solution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.theory.costs import Costs
from dropmuon.theory.linear_programs import solve_covering_program, solve_linear_program
from dropmuon.theory.progressive import optimal_progressive, progressive_cost
from dropmuon.theory.smoothness import NonMonotoneWarning
from tests.theory.progressive_instances import (
    Array,
    matrices,
    problems,
    random_problem,
    step_costs,
    tails,
)


@given(problems())
def test_the_linear_program_agrees_with_the_recursion(problem: tuple[Array, Costs]) -> None:
    L, costs = problem
    p = optimal_progressive(L)
    solution = solve_linear_program(L, costs)
    assert solution.cost == pytest.approx(progressive_cost(p, L, costs), rel=1e-6)
    np.testing.assert_allclose(solution.probabilities, p, atol=1e-6)


@settings(max_examples=30)
@given(st.data())
def test_the_linear_program_has_the_same_optimum_for_all_costs(data: st.DataObject) -> None:
    L = data.draw(matrices())
    one, two = (
        solve_linear_program(L, data.draw(step_costs(len(L)))).probabilities for _ in range(2)
    )
    np.testing.assert_allclose(one, two, atol=1e-6)


@settings(max_examples=30)
@given(matrices(2))
def test_the_recursion_is_optimal_where_only_the_overhead_costs(L: Array) -> None:
    costs = Costs(1.0, np.zeros(len(L)), np.zeros(len(L)))
    cost = progressive_cost(optimal_progressive(L), L, costs)
    assert solve_linear_program(L, costs).cost == pytest.approx(cost, rel=1e-6)


@given(problems())
def test_the_multipliers_certify_the_optimum(problem: tuple[Array, Costs]) -> None:
    L, costs = problem
    solution = solve_linear_program(L, costs)
    weights = np.where(np.tri(len(L)) > 0, 0.5 / L, 0.0)
    assert (solution.multipliers >= -1e-9).all()
    assert (weights.T @ solution.multipliers <= tails(costs) * (1 + 1e-6)).all()
    assert solution.multipliers.sum() == pytest.approx(solution.cost, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_constants_of_very_different_size_agree_too(seed: int) -> None:
    """HiGHS takes weights below 1e-9 for zero: they must not reach it as they are."""
    rng = np.random.default_rng(seed)
    L = np.sort(10.0 ** rng.uniform(-9, 9, (5, 5)), axis=1)[:, ::-1]
    costs = Costs(rng.exponential(), *rng.exponential(size=(2, 5)))
    cost = progressive_cost(optimal_progressive(L), L, costs)
    assert solve_linear_program(L, costs).cost == pytest.approx(cost, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_any_sets_have_a_certified_optimum_also_for_weights_of_very_different_size(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    weights = 10.0 ** rng.uniform(-6, 6, (4, 9)) * (rng.random((4, 9)) < 0.5)
    weights[:, 0] = 10.0 ** rng.uniform(-6, 6, 4)
    weights[:, 1] = 0.0  # a set that moves nothing
    prices = rng.exponential(size=9)
    solution = solve_covering_program(weights, prices)
    p, dual = solution.probabilities, solution.multipliers
    assert solution.cost == pytest.approx(prices @ p / (weights @ p).min(), rel=1e-9)
    assert p[1] == 0.0
    assert (dual >= 0).all()
    assert (weights.T @ dual <= prices * (1 + 1e-6)).all()
    assert dual.sum() == pytest.approx(solution.cost, rel=1e-6)


@pytest.mark.parametrize("size", [30, 120])
def test_many_layers_agree_too(size: int) -> None:
    L, costs = random_problem(size, size)
    cost = progressive_cost(optimal_progressive(L), L, costs)
    assert solve_linear_program(L, costs).cost == pytest.approx(cost, rel=1e-6)


def test_the_linear_program_serves_constants_that_rise_with_the_cutoff() -> None:
    L, costs = np.array([[1.0, 0.0], [2.0, 50.0]]), Costs(0.0, [0.01, 1.0], [0.0, 0.0])
    with pytest.warns(NonMonotoneWarning):
        program = solve_linear_program(L, costs)
    with pytest.warns(NonMonotoneWarning):
        p = optimal_progressive(L)
    with pytest.warns(NonMonotoneWarning):
        assert program.cost < progressive_cost(p, L, costs)
    np.testing.assert_allclose(program.probabilities, [1.0, 0.0], atol=1e-9)


def test_a_layer_in_no_set_makes_the_program_infeasible() -> None:
    with pytest.raises(ValueError, match=r"layers \[1\]"):
        solve_covering_program([[1.0, 2.0], [0.0, 0.0]], [1.0, 1.0])


@pytest.mark.parametrize(
    ("weights", "prices", "message"),
    [
        ([], [], "matrix"),
        ([[1.0]], [1.0, 2.0], "one entry per column"),
        ([[-1.0]], [1.0], r"non-negative, got -1.0 at index \(0, 0\)"),
        ([["a"]], [1.0], "weights must be numbers"),
        ([[np.nan]], [1.0], "finite"),
        ([[1.0]], [np.nan], "set_costs must be finite"),
        ([[1.0]], [0.0], "not all zero"),
    ],
)
def test_bad_programs_are_named(weights: object, prices: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve_covering_program(weights, prices)  # type: ignore[arg-type]


def test_costs_of_another_number_of_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="costs must be of 1 layers, got 2"):
        solve_linear_program([[1.0]], Costs(1.0, [1.0, 1.0], [1.0, 1.0]))
