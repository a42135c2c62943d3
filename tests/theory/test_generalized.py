"""The generalized case: the 1/eps recursion is the global optimum, the 1/eps^2 bound is a bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dropmuon.theory.complexity import generalized_weights, iterations_generalized
from dropmuon.theory.costs import Costs, expected_cost
from dropmuon.theory.generalized import (
    full_update_is_optimal_generalized,
    generalized_cost,
    generalized_squared_cost,
    least_feasible,
    solve_generalized,
    solve_generalized_squared,
)
from dropmuon.theory.smoothness import NonMonotoneWarning, Smoothness
from tests.theory.progressive_instances import (
    Array,
    all_costs,
    all_squared_costs,
    brute_force,
    matrices,
    problems,
    random_problem,
    simplex,
    step_costs,
    tails,
)

seeds = st.integers(0, 2**32 - 1)


def leaves(L1: Array, prefix: tuple[float, ...] = ()) -> list[tuple[float, ...]]:
    """Every q whose layers are each zero where that is feasible, or on a tight constraint."""
    i = len(prefix)
    if i == len(L1):
        return [prefix]
    A, B = sum(prefix), sum(q * L1[i, s] for s, q in enumerate(prefix))
    choices = [0.0] if i and A * A >= B * (1 - 1e-9) else []
    half, square = L1[i, i] / 2 - A, (L1[i, i] / 2 - A) ** 2 + B - A * A
    if square >= 0:
        roots = {half - square**0.5, half + square**0.5}
        choices += [root for root in roots if root > 1e-9 * A]
    return list(itertools.chain.from_iterable(leaves(L1, (*prefix, q)) for q in choices))


def test_two_layers_by_hand() -> None:
    # q_1 = 1; A^2 = 1 < B = 3, so q^2 + (2 - 2) q + 1 - 3 = 0 and q_2 = sqrt(2)
    q = least_feasible(np.array([[1.0, 0.0], [3.0, 2.0]]))
    np.testing.assert_allclose(q, [1.0, 2**0.5])
    costs = Costs(1.0, [1.0, 2.0], [3.0, 4.0])
    solution = solve_generalized([[1.0, np.nan], [3.0, 2.0]], costs)
    assert solution.cost == pytest.approx(11 + 7 * 2**0.5)
    assert solution.gap == 0.0


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(8))
def test_the_recursion_matches_brute_force(size: int, seed: int) -> None:
    L1, costs = random_problem(100 * size + seed, size)
    solution = solve_generalized(L1, costs)
    found = brute_force(L1, tails(costs), seed)
    assert found >= solution.cost * (1 - 1e-7)
    assert found == pytest.approx(solution.cost, rel=1e-3)


@settings(max_examples=60)
@given(problems(1, 6))
def test_the_recursion_is_the_best_leaf_of_the_tree_of_tight_constraints(
    problem: tuple[Array, Costs],
) -> None:
    L1, costs = problem
    d = tails(costs)
    best = min(float(d @ np.array(leaf)) for leaf in leaves(L1))
    assert solve_generalized(L1, costs).cost == pytest.approx(best, rel=1e-7)


@given(matrices(1, 6))
def test_that_tree_is_a_single_path_where_constants_do_not_rise_with_the_cutoff(L1: Array) -> None:
    assert len(leaves(L1)) == 1


def test_that_tree_branches_where_a_constant_rises_with_the_cutoff() -> None:
    assert len(leaves(np.array([[1.0, 0.0], [0.99, 2.5]]))) == 3


@settings(max_examples=60)
@given(problems(), seeds)
def test_every_cumulative_sum_is_the_least_feasible_one(
    problem: tuple[Array, Costs], seed: int
) -> None:
    L1 = np.tril(problem[0])
    least = least_feasible(L1).cumsum()
    for p in simplex(seed, 30, len(L1)):
        q = p / (p.cumsum() ** 2 / (L1 @ p)).min()
        assert (q.cumsum() >= least * (1 - 1e-9)).all()


@settings(max_examples=60)
@given(problems(), seeds)
def test_no_other_probabilities_cost_less(problem: tuple[Array, Costs], seed: int) -> None:
    L1, costs = problem
    solution = solve_generalized(L1, costs)
    near = simplex(seed, 100, len(L1))
    for step in (1.0, 1e-2, 1e-4):
        moved = (1 - step) * solution.probabilities + step * near
        assert all_costs(moved, L1, tails(costs)).min() >= solution.cost * (1 - 1e-9)


@given(problems())
def test_the_solution_is_feasible_and_tight_where_it_is_positive(
    problem: tuple[Array, Costs],
) -> None:
    L1, costs = problem
    solution = solve_generalized(L1, costs)
    p = solution.probabilities
    rates = p.cumsum() ** 2 / (np.tril(L1) @ p)
    np.testing.assert_allclose(rates[p > 0], rates.min(), rtol=1e-9)
    assert solution.cost == pytest.approx(generalized_cost(p, L1, costs), rel=1e-12)
    assert solution.cost == pytest.approx(float(tails(costs) @ least_feasible(np.tril(L1))))
    assert (solution.gap, solution.lower_bound) == (0.0, solution.cost)


@given(st.data())
def test_the_probabilities_do_not_depend_on_the_costs(data: st.DataObject) -> None:
    L1 = data.draw(matrices())
    one, two = (
        solve_generalized(L1, data.draw(step_costs(len(L1)))).probabilities for _ in range(2)
    )
    np.testing.assert_array_equal(one, two)


@given(problems())
def test_full_update_is_optimal_iff_the_first_constant_is_the_largest(
    problem: tuple[Array, Costs],
) -> None:
    L1, costs = problem
    expected = L1[0, 0] >= L1[:, 0].max()
    assert full_update_is_optimal_generalized(L1) == expected
    assert (solve_generalized(L1, costs).probabilities[0] == 1.0) == expected


@given(problems(2))
def test_full_update_costs_more_where_the_theorem_excludes_it(
    problem: tuple[Array, Costs],
) -> None:
    L1, costs = problem
    assume(L1[0, 0] < 0.99 * L1[:, 0].max())
    full = generalized_cost(np.eye(len(L1))[0], L1, costs)
    assert solve_generalized(L1, costs).cost < full


@given(st.data())
def test_costs_are_those_of_any_sampling(data: st.DataObject) -> None:
    L0 = data.draw(matrices(1, 5))
    b = len(L0)
    L1, costs = data.draw(matrices(b, b)), data.draw(step_costs(b))
    p = simplex(data.draw(seeds), 1, b)[0]
    sampling = {tuple(range(s, b)): float(p[s]) for s in range(b)}
    smoothness = Smoothness.progressive(L0, L1)
    step = expected_cost(sampling, costs)
    slowest = generalized_weights(sampling, smoothness).min()
    assert generalized_cost(p, L1, costs) == pytest.approx(step / slowest)
    K = iterations_generalized(sampling, smoothness, gap=0.5, epsilon=1.0)
    assert generalized_squared_cost(p, L0, L1, costs) == pytest.approx(step * K.quadratic)


def test_two_thousand_layers() -> None:
    L1, costs = random_problem(2, 2000)
    solution = solve_generalized(L1, costs)
    assert solution.gap == 0.0
    assert solution.probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds_for_constants_that_rise_with_the_cutoff(seed: int) -> None:
    rng = np.random.default_rng(seed)
    L1, costs = rng.uniform(0.2, 2.0, (4, 4)), random_problem(seed, 4)[1]
    with pytest.warns(NonMonotoneWarning):
        solution = solve_generalized(L1, costs)
    found = brute_force(L1, tails(costs), seed)
    assert solution.lower_bound <= found * (1 + 1e-9)
    assert found <= solution.cost * (1 + 1e-6)
    assert solve_generalized(L1, costs, repair=True).gap == 0.0


def test_a_gap_is_reported_where_the_recursion_is_not_optimal() -> None:
    L1, costs = np.array([[1.0, 0.0], [2.0, 50.0]]), Costs(0.0, [0.01, 1.0], [0.0, 0.0])
    with pytest.warns(NonMonotoneWarning):
        solution = solve_generalized(L1, costs)
    assert solution.lower_bound <= brute_force(L1, tails(costs), 0) < 0.5 * solution.cost
    assert solution.gap > 0.5


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_squared_regime_is_bounded_and_matches_brute_force(size: int, seed: int) -> None:
    L1, costs = random_problem(50 * size + seed, size)
    L0, _ = random_problem(1000 + 50 * size + seed, size)
    solution = solve_generalized_squared(L0, L1, costs)
    p = simplex(seed, 20_000, size)
    for _ in range(6):  # zoom in on the best point
        values = all_squared_costs(p, L0, L1, tails(costs))
        best = p[values.argmin()]
        p = 0.7 * best + 0.3 * p
    found = float(values.min())
    assert solution.lower_bound <= found
    assert solution.cost <= found * (1 + 1e-6)
    assert solution.cost == pytest.approx(found, rel=2e-2)
    expected = generalized_squared_cost(solution.probabilities, L0, L1, costs)
    assert solution.cost == pytest.approx(expected, rel=1e-12)


@settings(max_examples=30)
@given(st.data())
def test_no_probabilities_undercut_the_squared_bound(data: st.DataObject) -> None:
    L0 = data.draw(matrices(1, 6))
    b = len(L0)
    L1, costs = data.draw(matrices(b, b)), data.draw(step_costs(b))
    solution = solve_generalized_squared(L0, L1, costs, starts=0)
    assert 0 < solution.lower_bound <= solution.cost
    for p in simplex(data.draw(seeds), 50, b):
        assert generalized_squared_cost(p, L0, L1, costs) >= solution.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("layer", [0.0, 1.0])
def test_the_squared_gap_closes_where_constants_are_proportional_and_constraints_tight(
    layer: float,
) -> None:
    L1 = np.array([[1.0, 0.0, 0.0], [3.0, 3.0, 0.0], [9.0, 9.0, 9.0]])
    costs = Costs(1.0, [layer] * 3, [layer] * 3)
    solution = solve_generalized_squared(5.0 * L1, L1, costs)
    assert solution.gap < 1e-9
    expected = solve_generalized(L1, costs).probabilities
    np.testing.assert_allclose(solution.probabilities, expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_squared_bound_holds_for_free_layers_and_constants_that_rise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    L0, L1 = rng.exponential(size=(2, 4, 4))
    L0[:, seed % 4] *= seed % 3 > 0
    costs = Costs(0.5, rng.exponential(size=4) * [1, 0, 0, seed % 2], np.zeros(4))
    with pytest.warns(NonMonotoneWarning):
        solution = solve_generalized_squared(L0, L1, costs, starts=2)
    p = simplex(seed, 5_000, 4)
    values = all_squared_costs(p, L0, L1, tails(costs))
    assert solution.lower_bound <= values.min() * (1 + 1e-9)
    assert 0 <= solution.gap <= 1


def test_the_squared_search_is_reproducible() -> None:
    L1, costs = random_problem(7, 5)
    L0, _ = random_problem(8, 5)
    one, two = (solve_generalized_squared(L0, L1, costs) for _ in range(2))
    np.testing.assert_array_equal(one.probabilities, two.probabilities)


@pytest.mark.parametrize("bad", [[[0.0]], [[-1.0]], [[np.nan]], [[np.inf]], [], [[1.0, 1.0]]])
def test_bad_constants_are_named(bad: list[list[float]]) -> None:
    costs = Costs(1.0, [1.0], [1.0])
    with pytest.raises(ValueError, match="L1 must"):
        solve_generalized(bad, costs)
    with pytest.raises(ValueError, match="L1 must"):
        solve_generalized_squared([[1.0]], bad, costs)


def test_a_squared_regime_without_l0_is_refused() -> None:
    with pytest.raises(ValueError, match="L0 must be positive somewhere"):
        solve_generalized_squared([[0.0]], [[1.0]], Costs(1.0, [1.0], [1.0]))


def test_mismatched_arguments_are_refused() -> None:
    costs = Costs(1.0, [1.0], [1.0])
    two = [[1.0, 0.0], [1.0, 1.0]]
    with pytest.raises(ValueError, match="costs must be of 2 layers, got 1"):
        solve_generalized(two, costs)
    with pytest.raises(ValueError, match="L0 must have the shape of L1"):
        solve_generalized_squared(two, [[1.0]], costs)
    with pytest.raises(ValueError, match="starts must be a whole number of at least 0"):
        solve_generalized_squared([[1.0]], [[1.0]], costs, starts=-1)


def test_the_cost_is_infinite_where_the_first_layer_never_moves() -> None:
    costs, L = Costs(1.0, [1.0, 1.0], [1.0, 1.0]), [[1.0, 0.0], [1.0, 1.0]]
    assert generalized_cost([0.0, 1.0], L, costs) == np.inf
    assert generalized_squared_cost([0.0, 1.0], L, L, costs) == np.inf
