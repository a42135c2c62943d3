"""The best of a parametric family, found by scanning or by Dinkelbach's algorithm."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from dropmuon.samplers import Nice, Progressive, epoch_shift
from dropmuon.theory.complexity import generalized_weights, smooth_weights
from dropmuon.theory.costs import Costs, expected_cost
from dropmuon.theory.fractional_programs import Box, best_of_family, dinkelbach
from dropmuon.theory.generalized import solve_generalized
from dropmuon.theory.partitions import best_tau
from dropmuon.theory.progressive import optimal_progressive, progressive_cost
from dropmuon.theory.smoothness import Smoothness
from tests.theory.progressive_instances import Array, problems, random_problem

Sets = Mapping[tuple[int, ...], float]


def cutoffs(share: float | npt.ArrayLike, b: int) -> Sets:
    """Progressive training by its first probabilities; the last cutoff has what is left."""
    first = np.atleast_1d(np.asarray(share, dtype=np.float64))
    p = np.append(first, 1.0 - first.sum()) if len(first) < b else first / first.sum()
    return {tuple(range(s, b)): float(p[s]) for s in range(b)}


@settings(max_examples=30)
@given(problems(2, 2))
def test_one_probability_of_two_layers_is_the_recursions(problem: tuple[Array, Costs]) -> None:
    L, costs = problem
    weights = functools.partial(smooth_weights, smoothness=Smoothness.progressive(L))
    choice = best_of_family(lambda x: cutoffs(x, 2), Box(1e-9, 1.0), costs, weights)
    best = progressive_cost(optimal_progressive(L), L, costs)
    assert best * (1 - 1e-9) <= choice.cost <= best * (1 + 1e-5)


def test_vectors_of_parameters_come_near_the_recursion() -> None:
    L, costs = random_problem(4, 3)
    weights = functools.partial(smooth_weights, smoothness=Smoothness.progressive(L))
    box = Box((1e-6,) * 3, (1.0,) * 3)
    choice = best_of_family(lambda x: cutoffs(x, 3), box, costs, weights)
    best = progressive_cost(optimal_progressive(L), L, costs)
    assert best * (1 - 1e-9) <= choice.cost <= best * (1 + 1e-3)


def test_the_bounds_of_a_box_may_be_any_sequence() -> None:
    box = Box([1e-6, 0.5], np.array([1.0, 2.0]))  # type: ignore[arg-type]
    assert box == Box((1e-6, 0.5), (1.0, 2.0))
    costs, smoothness = Costs(1.0, [1.0, 1.0], [1.0, 1.0]), Smoothness.separable([1.0, 2.0])
    weights = functools.partial(smooth_weights, smoothness=smoothness)
    choice = best_of_family(lambda x: cutoffs(x, 2), Box([1e-6] * 2, [1.0] * 2), costs, weights)
    assert choice.cost == pytest.approx(16.0, rel=1e-3)  # q = (2, 2), d = (5, 3)


def test_the_generalized_regime_is_served_by_its_weights() -> None:
    L1, costs = np.array([[1.0, 0.0], [3.0, 2.0]]), Costs(1.0, [1.0, 2.0], [3.0, 4.0])
    smoothness = Smoothness.progressive(L1, L1)
    choice = best_of_family(
        lambda x: cutoffs(x, 2),
        Box(1e-6, 1.0),
        costs,
        functools.partial(generalized_weights, smoothness=smoothness),
    )
    solution = solve_generalized(L1, costs)
    assert choice.cost == pytest.approx(solution.cost, rel=1e-6)
    assert choice.parameter == pytest.approx(solution.probabilities[0], rel=1e-4)


def test_the_best_tau_of_nice_samplers_is_that_of_the_closed_form() -> None:
    b, L = 5, np.array([1.0, 4.0, 2.0, 3.0, 5.0])
    costs = Costs(0.5, [5.0, 1.0, 1.0, 1.0, 1.0], [3.0, 1.0, 2.0, 1.0, 1.0])
    weights = functools.partial(smooth_weights, smoothness=Smoothness.separable(L))
    choice = best_of_family(Nice, range(1, b + 1), costs, weights)
    closed = best_tau("nice", np.tile(L[:, None], b), costs)
    assert choice.parameter == closed.tau
    assert choice.cost == pytest.approx(closed.cost)
    assert choice.sampler == Nice(closed.tau)


def test_the_best_epoch_shift_at_a_progress_beats_a_fine_grid() -> None:
    L, costs = random_problem(11, 6)
    smoothness = Smoothness.progressive(L)
    progress = 0.4

    def make(alpha: float) -> Progressive:
        return Progressive(epoch_shift(alpha))

    def weights(sampler: Progressive) -> Array:
        return smooth_weights(sampler, smoothness, progress)

    choice = best_of_family(make, Box(0.05, 5.0), costs, weights, progress=progress)
    grid = [
        expected_cost(make(alpha), costs, progress) / weights(make(alpha)).min()
        for alpha in np.linspace(0.05, 5.0, 1001).tolist()
    ]
    assert choice.cost <= min(grid) * (1 + 1e-9)
    assert choice.cost == pytest.approx(min(grid), rel=1e-3)
    assert choice.sampler == make(choice.parameter)
    at_start = best_of_family(make, Box(0.05, 5.0), costs, weights, progress=0.0)
    assert at_start.cost != pytest.approx(choice.cost, rel=1e-3)


def test_a_finite_family_makes_every_sampler_once() -> None:
    made = []

    def make(share: float) -> Sets:
        made.append(share)
        return cutoffs(share, 2)

    smoothness, costs = Smoothness.separable([1.0, 2.0]), Costs(1.0, [1.0, 1.0], [1.0, 1.0])
    choice = best_of_family(
        make, iter([0.2, 0.5, 0.9]), costs, functools.partial(smooth_weights, smoothness=smoothness)
    )
    assert made == [0.2, 0.5, 0.9]
    assert (choice.parameter, choice.evaluations) == (0.5, 3)


def test_samplers_that_leave_a_layer_out_are_passed_over() -> None:
    costs = Costs(1.0, [1.0, 1.0], [1.0, 1.0])
    weights = {0.1: [0.0, 9.0], 0.2: [1.0, 1.0], 0.3: [0.5, 2.0]}
    choice = best_of_family(
        lambda x: {(0, 1): x, (1,): 1 - x}, weights, costs, lambda made: weights[made[(0, 1)]]
    )
    assert choice.parameter == 0.2


def test_families_without_a_member_are_refused() -> None:
    costs = Costs(1.0, [1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="must not be empty"):
        best_of_family(lambda x: cutoffs(x, 2), [], costs, lambda made: [1.0])
    with pytest.raises(ValueError, match="moves every layer, got none in 2"):
        best_of_family(lambda x: cutoffs(x, 2), [0.1, 0.2], costs, lambda made: [0.0])


@pytest.mark.parametrize("bad", [[np.nan], [-1.0], []])
def test_bad_weights_are_named(bad: list[float]) -> None:
    costs = Costs(1.0, [1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="weights must be finite and non-negative"):
        best_of_family(lambda x: cutoffs(x, 2), [0.1], costs, lambda made: bad)


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        (1.0, 1.0, "below upper"),
        (0.0, np.nan, "finite"),
        ((0.0, 0.0), (1.0,), "alike"),
        ((), (), "alike"),
    ],
)
def test_bad_boxes_are_named(lower: float, upper: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Box(lower, upper)


def test_a_box_needs_points() -> None:
    with pytest.raises(ValueError, match="points must be a whole number of at least 2"):
        Box(0.0, 1.0, points=1)


def test_dinkelbach_minimises_a_ratio_of_functions() -> None:
    # (x^2 + 3) / (x + 1) is least at x = 1, where it is 2
    def minimise(z: float) -> float:
        return z / 2

    found = dinkelbach(lambda x: x * x + 3, lambda x: x + 1, minimise, 10.0)
    assert found.point == pytest.approx(1.0)
    assert found.value == pytest.approx(2.0)
    assert 1 < found.iterations < 10


def test_dinkelbach_at_the_optimum_stops_at_once() -> None:
    found = dinkelbach(lambda x: x * x + 3, lambda x: x + 1, lambda z: z / 2, 1.0)
    assert (found.point, found.iterations) == (1.0, 1)


def test_dinkelbach_refuses_a_start_without_a_ratio() -> None:
    with pytest.raises(ValueError, match=r"got 1.0 / 0.0"):
        dinkelbach(lambda x: 1.0, lambda x: x, lambda z: 1.0, 0.0)


def test_dinkelbach_says_when_it_does_not_converge() -> None:
    with pytest.raises(RuntimeError, match="max_iterations=2"):
        dinkelbach(lambda x: x * x + 3, lambda x: x + 1, lambda z: z / 2, 1000.0, max_iterations=2)
