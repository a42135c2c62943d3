"""Optimal shares against closed forms, grids and a general solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dropmuon import samplers
from dropmuon.samplers.allocation import Rule
from dropmuon.theory.costs import Costs, StepCosts, expected_cost
from dropmuon.theory.shares import optimal_shares, optimal_shares_by_bound

Array = np.ndarray
RULES: list[Rule] = ["best-radius", "fixed-radius"]
LEAST = 0.01
GRID = np.linspace(LEAST, 1.0, 12).tolist()

amounts = st.one_of(st.just(0.0), st.floats(0.01, 100.0))
noises = st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-3, 100.0))
few = settings(max_examples=50, deadline=None)


def vectors(b: int, of: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    return st.lists(of, min_size=b, max_size=b)


@st.composite
def instances(draw: st.DrawFn, most: int = 4) -> tuple[Costs, Array, Array]:
    """Costs, noise and gains."""
    b = draw(st.integers(1, most))
    fixed = draw(st.floats(0.01, 100.0))
    costs = Costs(fixed / 2, draw(vectors(b, amounts)), [fixed / (2 * b)] * b)
    return costs, np.array(draw(vectors(b, noises))), np.array(draw(vectors(b, amounts)))


def cost_of(costs: Costs, q: Array) -> float:
    return costs.overhead + float((costs.layer * q).sum() + costs.sharp.sum())


def progress_per_cost(costs: Costs, noise: Array, gain: Array, rule: Rule, q: Array) -> float:
    power = 1.0 if rule == "best-radius" else 0.5
    return float((gain / (1.0 + noise / q) ** power).sum()) / cost_of(costs, q)


def total(costs: Costs, terms: Array, rest: float, q: Array) -> float:
    """The bound's total cost relative to that of full shares."""
    numerator = rest + 2 * float((terms / np.sqrt(q)).sum())
    full = rest + 2 * float(terms.sum())
    return (numerator / full) ** 4 * cost_of(costs, q) / cost_of(costs, np.ones(q.size))


def monotone(b: int, values: list[float]) -> list[Array]:
    choices = itertools.combinations_with_replacement(values, b - 1)
    return [np.array([*choice, 1.0]) for choice in choices]


def by_slsqp(
    objective: Callable[[Array], float], b: int, constraints: list[dict[str, Any]] | None = None
) -> float:
    """The least objective over monotone log shares, from several starts; the last share is 1."""
    order = [{"type": "ineq", "fun": lambda x: np.diff(np.append(x, 0.0))}]
    best = math.inf
    for start in (0.9, 0.3, 0.05):
        result = minimize(
            lambda x: objective(np.append(np.exp(x), 1.0)),
            np.full(b - 1, math.log(start)),
            method="SLSQP",
            bounds=[(math.log(LEAST), 0.0)] * (b - 1),
            constraints=[*order, *(constraints or [])],
            options={"maxiter": 300, "ftol": 1e-14},
        )
        held = all((np.atleast_1d(c["fun"](result.x)) >= -1e-9).all() for c in constraints or [])
        x = np.minimum.accumulate(np.clip(result.x, math.log(LEAST), 0.0)[::-1])[::-1]
        if np.isfinite(x).all() and held:
            best = min(best, objective(np.append(np.exp(x), 1.0)))
    return best


def assert_shares(q: Array, least: float = LEAST) -> None:
    assert (np.diff(q) >= 0).all()
    assert least <= q[0]
    assert q[-1] == 1.0
    samplers.Shares(q)


@few
@given(instances(), st.sampled_from(RULES))
def test_no_point_of_a_grid_makes_more_progress_per_cost(
    instance: tuple[Costs, Array, Array], rule: Rule
) -> None:
    costs, noise, gain = instance
    solution = optimal_shares(costs, noise, gain, rule=rule, least=LEAST)
    assert_shares(solution.shares)
    value = progress_per_cost(costs, noise, gain, rule, solution.shares)
    full = progress_per_cost(costs, noise, gain, rule, np.ones(gain.size))
    for q in monotone(gain.size, GRID):
        assert value >= progress_per_cost(costs, noise, gain, rule, q) * (1 - 1e-10)
    assert solution.cost == pytest.approx(cost_of(costs, solution.shares))
    assert solution.speedup >= 1.0
    assert solution.speedup * full == pytest.approx(value)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(10))
def test_a_general_solver_finds_no_more_progress_per_cost(rule: Rule, seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = 6
    costs = Costs(rng.exponential() * 10, rng.exponential(size=b), rng.exponential(size=b))
    noise, gain = rng.exponential(size=(2, b))
    solution = optimal_shares(costs, noise, gain, rule=rule, least=LEAST)
    scale = progress_per_cost(costs, noise, gain, rule, solution.shares)
    found = by_slsqp(lambda q: -progress_per_cost(costs, noise, gain, rule, q) / scale, b)
    assert found == pytest.approx(-1.0, rel=1e-5)
    assert found >= -1.0 - 1e-10


@given(st.floats(1e-3, 10.0), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_one_share_has_a_closed_form(nu: float, fixed: float, B: float) -> None:
    """All layers in one, and a head that neither costs nor gains."""
    costs = Costs(fixed, [B, 0.0], [0.0, 0.0])
    best = optimal_shares(costs, nu, [1.0, 0.0], rule="best-radius").shares[0]
    given_radius = optimal_shares(costs, nu, [1.0, 0.0], rule="fixed-radius").shares[0]
    root = math.sqrt(nu * nu + 8 * nu * fixed / B)
    assert best == pytest.approx(min(1.0, math.sqrt(nu * fixed / B)), rel=1e-5)
    assert given_radius == pytest.approx(min(1.0, (root - nu) / 4), rel=1e-5)


def test_the_law_of_the_critical_batch_size() -> None:
    """Steps grow as 1 + nu/q: at nu = 1, halving the batch takes 3/2 of the steps."""
    costs = Costs(1.0, [3.0, 0.0], [0.0, 0.0])
    solution = optimal_shares(costs, 1.0, [1.0, 0.0], parts=2)
    assert solution.shares.tolist() == [0.5, 1.0]
    assert solution.speedup == pytest.approx((1 + 1) / (1 + 2) * 4.0 / 2.5)


def test_shares_without_noise_are_the_least_and_without_signal_full() -> None:
    costs = Costs(1.0, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    for rule in RULES:
        assert optimal_shares(costs, 0.0, rule=rule, least=0.1).shares.tolist() == [0.1, 0.1, 1.0]
        assert optimal_shares(costs, math.inf, rule=rule).shares.tolist() == [1.0, 1.0, 1.0]
        assert optimal_shares(costs, 1.0, 0.0, rule=rule).speedup == 1.0


@few
@given(instances(), st.sampled_from(RULES), st.integers(1, 5))
def test_parts_are_the_best_multiples(
    instance: tuple[Costs, Array, Array], rule: Rule, parts: int
) -> None:
    costs, noise, gain = instance
    solution = optimal_shares(costs, noise, gain, rule=rule, parts=parts)
    assert_shares(solution.shares, 1 / parts)
    multiples = (np.arange(1, parts + 1) / parts).tolist()
    values = [
        progress_per_cost(costs, noise, gain, rule, q) for q in monotone(gain.size, multiples)
    ]
    value = progress_per_cost(costs, noise, gain, rule, solution.shares)
    assert value == pytest.approx(max(values), rel=1e-10)
    assert solution.speedup >= 1.0
    free = optimal_shares(costs, noise, gain, rule=rule, least=1 / parts)
    assert solution.speedup <= free.speedup * (1 + 1e-10)


bounds = instances().filter(lambda instance: instance[2].any())


@few
@given(bounds, amounts)
def test_no_point_of_a_grid_has_a_lower_bound_times_cost(
    instance: tuple[Costs, Array, Array], rest: float
) -> None:
    costs, _, terms = instance
    solution = optimal_shares_by_bound(costs, terms, rest, least=LEAST)
    assert_shares(solution.shares)
    value = total(costs, terms, rest, solution.shares)
    for q in monotone(terms.size, GRID):
        assert value <= total(costs, terms, rest, q) * (1 + 1e-10)
    assert solution.speedup >= 1.0
    assert solution.speedup == pytest.approx(1 / value)


@few
@given(bounds, amounts, st.integers(1, 5))
def test_parts_are_the_best_multiples_by_the_bound_too(
    instance: tuple[Costs, Array, Array], rest: float, parts: int
) -> None:
    costs, _, terms = instance
    solution = optimal_shares_by_bound(costs, terms, rest, parts=parts)
    assert_shares(solution.shares, 1 / parts)
    multiples = (np.arange(1, parts + 1) / parts).tolist()
    least = min(total(costs, terms, rest, q) for q in monotone(terms.size, multiples))
    assert total(costs, terms, rest, solution.shares) == pytest.approx(least, rel=1e-10)
    assert solution.speedup >= 1.0


@pytest.mark.parametrize("seed", range(10))
def test_a_general_solver_finds_no_lower_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = 6
    costs = Costs(rng.exponential(), rng.exponential(size=b), rng.exponential(size=b))
    terms, rest = rng.exponential(size=b), 20 * rng.exponential()
    best = optimal_shares_by_bound(costs, terms, rest, least=LEAST)
    found = by_slsqp(lambda q: total(costs, terms, rest, q) * best.speedup, b)
    assert found == pytest.approx(1.0, rel=1e-6)
    assert found >= 1.0 - 1e-10

    cost = cost_of(costs, np.full(b, rng.uniform(0.1, 0.9)) ** np.linspace(2.0, 0.0, b))
    given_cost = optimal_shares_by_bound(costs, terms, rest, cost=cost, least=LEAST)
    assert given_cost.cost == pytest.approx(cost)
    value = float((terms / np.sqrt(given_cost.shares)).sum())
    within = {"type": "ineq", "fun": lambda x: cost - cost_of(costs, np.append(np.exp(x), 1.0))}
    found = by_slsqp(lambda q: float((terms / np.sqrt(q)).sum()) / value, b, [within])
    assert found == pytest.approx(1.0, rel=1e-6)
    assert given_cost.speedup <= best.speedup * (1 + 1e-12)


def test_the_bound_weighs_noise_and_cost_by_the_power_of_two_thirds() -> None:
    costs = Costs(1.0, [8.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    q = optimal_shares_by_bound(costs, [1.0, 1.0, 1.0], cost=4.0).shares
    assert q[1] / q[0] == pytest.approx(8 ** (2 / 3))
    assert 1.0 + 8 * q[0] + q[1] + q[2] == pytest.approx(4.0)


def test_quotients_that_fall_are_pooled() -> None:
    costs = Costs(1.0, [1.0, 3.0, 1.0], [0.0, 0.0, 0.0])
    q = optimal_shares_by_bound(costs, [4.0, 4.0, 1.0], cost=4.0).shares
    np.testing.assert_allclose(q, [0.5, 0.5, 1.0])  # (4 + 4) / (1 + 3) in both


def test_a_cost_of_all_or_more_buys_full_shares() -> None:
    costs = Costs(1.0, [1.0, 3.0, 1.0], [0.0, 0.0, 0.0])
    for cost in (6.0, 7.0):
        solution = optimal_shares_by_bound(costs, [1.0, 2.0, 3.0], cost=cost)
        assert solution.shares.tolist() == [1.0, 1.0, 1.0]
        assert solution.cost == 6.0


def test_the_bound_keeps_full_shares_where_noise_is_all_there_is() -> None:
    """K grows as the fourth power: with A = 0, a quarter of the examples costs 2^4 of the steps."""
    costs = Costs(1.0, [10.0, 1.0], [0.0, 0.0])
    assert optimal_shares_by_bound(costs, [1.0, 0.0], 0.0).shares.tolist() == [1.0, 1.0]
    assert optimal_shares_by_bound(costs, [1.0, 0.0], 1e3).speedup > 2.0


def test_costs_in_parts_are_those_of_fresh_batches_with_every_layer_moving() -> None:
    step = StepCosts(0.5, [1, 1, 1], [1, 1, 1], [1, 1, 1], batch=0.25, weight=[1, 1, 1])
    solution = optimal_shares(step.in_parts(), 0.3, parts=4)
    assert solution.shares[0] < 1
    backward = float(((step.backward + step.weight) * solution.shares).sum())
    assert solution.cost == pytest.approx(0.5 + 0.25 + 3 + backward + 3)
    full = optimal_shares(step.in_parts(), math.inf, parts=4)
    assert full.cost == pytest.approx(expected_cost(samplers.Full(), step.fresh()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: optimal_shares(c, [1.0]), "noise must have one number per layer, 2"),
        (lambda c: optimal_shares(c, 1.0, -1.0), "gain must be finite and at least 0"),
        (
            lambda c: optimal_shares(c, 1.0, rule="bound"),  # type: ignore[arg-type]
            "rule must be one of best-radius",
        ),
        (lambda c: optimal_shares(c, 1.0, parts=0), "parts must be a whole number"),
        (lambda c: optimal_shares(c, 1.0, least=0.0), "least must be above 0 and at most 1"),
        (lambda c: optimal_shares_by_bound(c, 0.0), "must not all be 0"),
        (lambda c: optimal_shares_by_bound(c, 1.0, -1.0), "rest must be a finite number"),
        (lambda c: optimal_shares_by_bound(c, 1.0, cost=1.0), "cost must be at least that of"),
        (lambda c: optimal_shares_by_bound(c, 1.0, cost=2.0, parts=2), "cost must be left out"),
        (lambda c: optimal_shares_by_bound(c, 1.0, parts=0), "parts must be a whole number"),
    ],
)
def test_bad_input_is_refused(call: Callable[[Costs], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Costs(1.0, [1.0, 1.0], [0.0, 0.0]))
