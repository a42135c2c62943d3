"""The recursion of the smooth case is optimal, and linear programs of any sets agree with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dropmuon.theory.complexity import smooth_weights
from dropmuon.theory.costs import Costs, expected_cost
from dropmuon.theory.progressive import (
    full_update_is_optimal,
    optimal_progressive,
    progressive_cost,
    solve_covering_program,
    solve_linear_program,
)
from dropmuon.theory.smoothness import NonMonotoneWarning, Smoothness
from tests.theory.progressive_instances import (
    Array,
    matrices,
    problems,
    random_problem,
    simplex,
    step_costs,
    tails,
)

seeds = st.integers(0, 2**32 - 1)


def test_two_layers_by_hand() -> None:
    # q_1 = 2 * 1, r_2 = 1 - 2 / (2 * 4) = 3/4, q_2 = 2 * 3/4 * 2 = 3
    np.testing.assert_allclose(optimal_progressive([[1.0, np.nan], [4.0, 2.0]]), [2 / 5, 3 / 5])


def test_cost_by_hand() -> None:
    # d = (1 + 3 + 7, 1 + 7); w = (0.5 / 2, 0.5 / 8 + 0.5 / 4) at p = (1/2, 1/2)
    costs = Costs(1.0, [2.0, 4.0], [1.0, 3.0])
    cost = progressive_cost([0.5, 0.5], [[1.0, 0.0], [4.0, 2.0]], costs)
    assert cost == pytest.approx((0.5 * 11 + 0.5 * 8) / 0.1875)


def test_one_layer_is_always_drawn() -> None:
    np.testing.assert_array_equal(optimal_progressive([[3.0]]), [1.0])
    assert full_update_is_optimal([[3.0]])


@settings(max_examples=40)
@given(problems(), seeds)
def test_no_other_probabilities_cost_less(problem: tuple[Array, Costs], seed: int) -> None:
    L, costs = problem
    p = optimal_progressive(L)
    best = progressive_cost(p, L, costs)
    for other in simplex(seed, 20, len(p)):
        for step in (1.0, 1e-2, 1e-4):
            moved = (1 - step) * p + step * other
            assert progressive_cost(moved, L, costs) >= best * (1 - 1e-9)


@given(problems(2), seeds)
def test_every_cumulative_sum_is_the_least_feasible_one(
    problem: tuple[Array, Costs], seed: int
) -> None:
    """Of all points of eq. fl2, scaled to a slowest weight of 1."""
    L, _ = problem
    half = np.where(np.tri(len(L)) > 0, 0.5 / L, 0.0)
    p = optimal_progressive(L)
    least = (p / (half @ p).min()).cumsum()
    for other in simplex(seed, 20, len(p)):
        assert ((other / (half @ other).min()).cumsum() >= least * (1 - 1e-9)).all()


@given(problems())
def test_a_cutoff_that_is_drawn_has_a_tight_constraint(problem: tuple[Array, Costs]) -> None:
    L, _ = problem
    p = optimal_progressive(L)
    w = np.where(np.tri(len(L)) > 0, 0.5 / L, 0.0) @ p
    drawn = p > 0
    np.testing.assert_allclose(w[drawn], w.min(), rtol=1e-9)


@given(matrices())
def test_full_update_is_optimal_iff_the_first_constant_is_the_largest(L: Array) -> None:
    expected = L[0, 0] >= L[:, 0].max()
    assert full_update_is_optimal(L) == expected
    assert (optimal_progressive(L)[0] == 1.0) == expected


@given(problems(2))
def test_full_update_costs_more_where_it_is_not_optimal(problem: tuple[Array, Costs]) -> None:
    L, costs = problem
    assume(L[0, 0] < 0.99 * L[:, 0].max())
    full = np.eye(len(L))[0]
    assert progressive_cost(optimal_progressive(L), L, costs) < progressive_cost(full, L, costs)


@given(matrices(), st.floats(1e-100, 1e100))
def test_probabilities_do_not_depend_on_the_unit(L: Array, unit: float) -> None:
    np.testing.assert_allclose(optimal_progressive(L * unit), optimal_progressive(L), rtol=1e-9)


def test_entries_above_the_diagonal_are_not_read() -> None:
    L, _ = random_problem(0, 6)
    marked = np.where(np.tri(6) > 0, L, np.nan)
    np.testing.assert_array_equal(optimal_progressive(marked), optimal_progressive(L))


@given(st.data())
def test_cost_is_expected_cost_over_the_least_weight_of_any_sampling(data: st.DataObject) -> None:
    L = data.draw(matrices(1, 5))
    b = len(L)
    costs = data.draw(step_costs(b))
    p = simplex(data.draw(seeds), 1, b)[0]
    sampling = {tuple(range(s, b)): float(p[s]) for s in range(b)}
    w = smooth_weights(sampling, Smoothness.progressive(L))
    expected = expected_cost(sampling, costs) / w.min()
    assert progressive_cost(p, L, costs) == pytest.approx(expected)


def test_cost_is_infinite_where_the_first_layer_never_moves() -> None:
    costs = Costs(1.0, [1.0, 1.0], [0.0, 0.0])
    assert progressive_cost([0.0, 1.0], [[1.0, 0.0], [1.0, 1.0]], costs) == np.inf


def test_two_thousand_layers() -> None:
    L, _ = random_problem(1, 2000)
    p = optimal_progressive(L)
    assert p.sum() == pytest.approx(1.0)
    w = np.where(np.tri(2000) > 0, 0.5 / L, 0.0) @ p
    np.testing.assert_allclose(w[p > 0], w.min(), rtol=1e-6)


def test_constants_that_rise_with_the_cutoff_warn() -> None:
    with pytest.warns(NonMonotoneWarning, match=r"L\[1, 0\] = 1.0 < L\[1, 1\] = 2.0"):
        optimal_progressive([[1.0, 0.0], [1.0, 2.0]])
    with pytest.warns(NonMonotoneWarning):
        full_update_is_optimal([[1.0, 0.0], [1.0, 2.0]])


def test_repair_takes_the_nearest_monotone_rows() -> None:
    noisy = [[1.0, 0.0, 0.0], [1.0, 3.0, 0.0], [5.0, 2.0, 4.0]]
    repaired = [[1.0, 0.0, 0.0], [2.0, 2.0, 0.0], [5.0, 3.0, 3.0]]
    np.testing.assert_allclose(
        optimal_progressive(noisy, repair=True), optimal_progressive(repaired), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("L", "message"),
    [
        ([], "square"),
        (np.empty((0, 0)), "square"),
        ([1.0, 2.0], "square"),
        ([["a"]], "L must be numbers"),
        ([[1.0], [1.0, 1.0]], "L must be numbers"),
        ([[1.0, 2.0]], "square"),
        ([[-1.0]], r"^L must be finite and above 0 .* got -1.0 at index \(0, 0\)"),
        ([[1.0, 0.0], [0.0, 1.0]], r"got 0.0 at index \(1, 0\); estimate it again, or give"),
        ([[1.0, 0.0], [1.0, np.nan]], r"got nan at index \(1, 1\)"),
        ([[1.0, 0.0], [np.inf, 1.0]], r"got inf at index \(1, 0\)"),
    ],
)
def test_bad_constants_are_named(L: npt.ArrayLike, message: str) -> None:
    for function in (optimal_progressive, full_update_is_optimal):
        with pytest.raises(ValueError, match=message):
            function(L)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([1.0], "probabilities must have 2 entries, got 1"),
        ([0.5, 0.4], "sum to 1"),
        ([1.5, -0.5], "not be negative"),
        ([np.nan, 1.0], "finite"),
    ],
)
def test_bad_probabilities_are_named(p: list[float], message: str) -> None:
    costs = Costs(1.0, [1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match=message):
        progressive_cost(p, [[1.0, 0.0], [1.0, 1.0]], costs)
    with pytest.raises(TypeError, match="probabilities must be numbers"):
        progressive_cost(["a", "b"], [[1.0, 0.0], [1.0, 1.0]], costs)


def test_costs_of_another_number_of_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="costs must be of 2 layers, got 3"):
        progressive_cost([1.0, 0.0], [[1.0, 0.0], [1.0, 1.0]], Costs(1.0, [1.0] * 3, [1.0] * 3))


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


def test_a_program_refuses_costs_of_another_number_of_layers() -> None:
    with pytest.raises(ValueError, match="costs must be of 1 layers, got 2"):
        solve_linear_program([[1.0]], Costs(1.0, [1.0, 1.0], [1.0, 1.0]))


def test_constants_beyond_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="300 orders of magnitude, got 1e\\+300 beside 1e-300"):
        optimal_progressive([[1e-300, 0.0], [1e300, 1e300]])
