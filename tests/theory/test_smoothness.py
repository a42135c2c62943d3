"""Constants over sets: access, monotonicity, and the repair as a projection."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dropmuon.theory.smoothness import (
    NonMonotoneWarning,
    Smoothness,
    covering_pairs,
    nearest_monotone,
)

values = st.floats(0.0, 10.0, allow_subnormal=False)


def subsets(b: int) -> list[tuple[int, ...]]:
    return [s for size in range(1, b + 1) for s in combinations(range(b), size)]


@st.composite
def families(draw: st.DrawFn) -> dict[tuple[int, ...], np.ndarray]:
    """Some sets of up to four layers, with arbitrary constants."""
    b = draw(st.integers(1, 4))
    sets = draw(st.lists(st.sampled_from(subsets(b)), min_size=1, unique=True))
    return {s: draw(arrays(np.float64, b, elements=values)) for s in sets}


def quietly(l0: dict[tuple[int, ...], np.ndarray]) -> Smoothness:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonMonotoneWarning)
        return Smoothness(l0)


def inclusions(smoothness: Smoothness) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(s, t) for s in smoothness.sets for t in smoothness.sets if set(s) < set(t)]


def test_layers_outside_of_the_set_have_constant_zero() -> None:
    smoothness = Smoothness({(0, 2): [1.0, np.nan, 3.0]}, {(2, 0): [4.0, 5.0, 6.0]})
    assert [smoothness.l0(i, (0, 2)) for i in range(3)] == [1.0, 0.0, 3.0]
    assert [smoothness.l1(i, (0, 2)) for i in range(3)] == [4.0, 0.0, 6.0]
    assert smoothness.sets == ((0, 2),)
    assert smoothness.num_layers == 3


def test_progressive_constants_are_those_of_suffixes() -> None:
    L = np.array([[3.0, np.nan, np.nan], [2.0, 1.0, np.nan], [9.0, 5.0, 0.0]])
    smoothness = Smoothness.progressive(L, 2 * L)
    assert smoothness.l0(2, (1, 2)) == 5.0
    assert smoothness.l1(1, {0, 1, 2}) == 4.0
    np.testing.assert_array_equal(smoothness.progressive_matrix(0), np.tril(np.nan_to_num(L)))
    np.testing.assert_array_equal(smoothness.progressive_matrix(1), 2 * np.tril(np.nan_to_num(L)))


def test_separable_constants_hold_for_every_set() -> None:
    smoothness = Smoothness.separable([1.0, 2.0, 3.0])
    assert smoothness.sets == ()
    assert smoothness.constants(0, (0, 2)).tolist() == [1.0, 0.0, 3.0]
    assert smoothness.l1(0, (0,)) == 0.0
    assert smoothness.check_monotone() == []
    assert smoothness.repair().progressive_matrix(0)[2].tolist() == [3.0, 3.0, 3.0]


def test_the_papers_bilinear_function_is_monotone() -> None:
    """f(x, y) = a x y: affine in each layer alone, a in both (remark after "smooth_subs")."""
    a = 2.5
    smoothness = Smoothness({(0,): [0, 0], (1,): [0, 0], (0, 1): [a, a]})
    assert smoothness.check_monotone() == []
    rng = np.random.default_rng(0)
    for gamma in rng.normal(size=(100, 2)):
        bound = sum(smoothness.l0(i, (0, 1)) / 2 * gamma[i] ** 2 for i in range(2))
        assert a * gamma[0] * gamma[1] <= bound + 1e-12


@given(arrays(np.float64, (4, 4), elements=st.floats(-1.0, 1.0)))
def test_quadratics_have_monotone_constants(root: np.ndarray) -> None:
    """Row sums of |H| over the moving layers bound x^T H x, and grow with the set."""
    H = root @ root.T
    smoothness = Smoothness({s: np.abs(H[:, list(s)]).sum(axis=1) for s in subsets(4)})
    assert smoothness.check_monotone(tolerance=1e-12) == []


def test_falling_constants_warn_and_name_the_place() -> None:
    with pytest.warns(NonMonotoneWarning, match=r"the first in layer 1: 3 for \(1,\) but 2 for"):
        smoothness = Smoothness.progressive([[1.0, 0.0], [2.0, 3.0]])
    (violation,) = smoothness.check_monotone()
    assert violation == (0, 1, (1,), (0, 1), 3.0, 2.0)


def test_rounding_does_not_warn() -> None:
    smoothness = Smoothness.progressive([[1.0, 0.0], [2.0, 2.0 * (1 + 1e-9)]])
    assert smoothness.check_monotone() == []
    assert len(smoothness.check_monotone(tolerance=0.0)) == 1


@given(families())
def test_violations_are_found_exactly_if_there_are_any(family: dict) -> None:
    smoothness = quietly(family)
    any_pair = any(
        (smoothness.constants(0, s) > smoothness.constants(0, t)).any()
        for s, t in inclusions(smoothness)
    )
    assert bool(smoothness.check_monotone(tolerance=0.0)) == any_pair


@given(st.lists(st.sampled_from(subsets(4)), min_size=1, unique=True))
def test_covering_pairs_have_nothing_in_between_and_generate_the_order(sets: list) -> None:
    members = np.array([[i in s for i in range(4)] for s in sets])
    pairs = {(int(s), int(t)) for s, t in covering_pairs(members)}
    n = range(len(sets))
    below = {(s, t) for s in n for t in n if set(sets[s]) < set(sets[t])}
    covers = {(s, t) for s, t in below if not any((s, u) in below and (u, t) in below for u in n)}
    assert pairs == covers


@given(families())
def test_repair_is_the_projection_onto_monotone_constants(family: dict) -> None:
    """The projection x of y onto a cone has x in it, <y - x, x> = 0 and <y - x, z> <= 0 in it."""
    given_, repaired = quietly(family), quietly(family).repair()
    assert repaired.check_monotone(tolerance=0.0) == []
    rng = np.random.default_rng(0)
    for i in range(given_.num_layers):
        holding = [s for s in given_.sets if i in s]
        y = np.array([given_.l0(i, s) for s in holding])
        x = np.array([repaired.l0(i, s) for s in holding])
        assert abs((y - x) @ x) <= 1e-9
        for _ in range(20):  # z: sums of random weights of what lies below, monotone by making
            weight = {s: rng.exponential() * rng.integers(2) for s in holding}
            z = np.array([sum(w for s, w in weight.items() if set(s) <= set(t)) for t in holding])
            assert (y - x) @ z <= 1e-9
        for shift in (1.0, -1.0):
            assert abs((y - x).sum() * shift) <= 1e-9


@given(families())
def test_repair_twice_is_repair_once_bit_for_bit(family: dict) -> None:
    once = quietly(family).repair()
    twice = once.repair()
    for s in once.sets:
        np.testing.assert_array_equal(once.constants(0, s), twice.constants(0, s))


@given(arrays(np.float64, (5, 5), elements=values))
def test_chains_are_repaired_by_the_minmax_formula(L: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonMonotoneWarning)
        repaired = Smoothness.progressive(L).repair().progressive_matrix(0)
    for i in range(5):
        y = L[i, : i + 1][::-1]  # from the smallest set to the largest
        n = y.size
        exact = [
            max(min(y[low : high + 1].mean() for high in range(k, n)) for low in range(k + 1))
            for k in range(n)
        ]
        np.testing.assert_allclose(repaired[i, : i + 1][::-1], exact, atol=1e-12)


def test_a_known_projection_over_a_diamond() -> None:
    """The order: 0 below 1 and 2, both below 3."""
    pairs = np.array([[0, 1], [0, 2], [1, 3], [2, 3]])
    found = nearest_monotone(np.array([4.0, 1.0, 3.0, 2.0]), pairs)
    np.testing.assert_allclose(found, [2.5, 2.5, 2.5, 2.5], atol=1e-12)
    found = nearest_monotone(np.array([2.0, 0.0, 3.0, 5.0]), pairs)
    np.testing.assert_allclose(found, [1.0, 1.0, 3.0, 5.0], atol=1e-12)


def test_monotone_constants_are_left_alone() -> None:
    L = np.tril(np.outer(np.arange(1.0, 5.0), np.linspace(2.0, 0.1, 4)))
    smoothness = Smoothness.progressive(L)
    np.testing.assert_array_equal(smoothness.repair().progressive_matrix(0), L)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Smoothness({}), "l0 must map sets to constants"),
        (
            lambda: Smoothness([1.0]),  # type: ignore[arg-type]
            "l0 must map sets to constants",
        ),
        (lambda: Smoothness({(0,): []}), "l0's sets must hold layer indices"),
        (lambda: Smoothness({(0,): [-1.0]}), r"l0\[\(0,\)\] must be finite and at least 0, got -1"),
        (lambda: Smoothness({(0,): [np.nan]}), "must be finite and at least 0, got nan"),
        (lambda: Smoothness({(0,): [1.0, 1.0], (1,): [1.0]}), "must have 2 entries, got 1"),
        (lambda: Smoothness({(2,): [1.0, 1.0]}), "layer indices from 0 to 1"),
        (lambda: Smoothness({(0, 1): [1, 1], (1, 0): [1, 1]}), "must name a set once"),
        (lambda: Smoothness({(0,): [1.0]}, {}), r"for the same sets, got \(0,\)"),
        (lambda: Smoothness({(0,): ["a"]}), "must be numbers"),
        (lambda: Smoothness.progressive([[1.0, 2.0]]), "L0 must be a square matrix"),
        (lambda: Smoothness.progressive(np.zeros((0, 0))), "L0 must be a square matrix"),
        (lambda: Smoothness.progressive([[1, 0], [-2, 1]]), r"got -2.0 at index \(1, 0\)"),
        (lambda: Smoothness.progressive([[1.0, 0.0], [np.inf, 1.0]]), r"got inf at index \(1, 0\)"),
        (lambda: Smoothness.progressive(np.eye(2), np.eye(3)), r"shape of L0, \(2, 2\), got"),
        (lambda: Smoothness.separable([]), "L0 must not be empty"),
        (lambda: Smoothness.separable([1.0, 1.0], [1.0]), "L1 must have 2 entries, got 1"),
    ],
)
def test_bad_constants_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_sets_and_layers_are_refused() -> None:
    smoothness = Smoothness({(0, 1): [1.0, 1.0]})
    with pytest.raises(ValueError, match=r"one of the 1 sets with known constants, got \(1,\)"):
        smoothness.l0(1, (1,))
    with pytest.raises(ValueError, match="i must hold layer indices from 0 to 1, got"):
        smoothness.l0(2, (0, 1))
    with pytest.raises(ValueError, match="sets with known constants"):
        smoothness.progressive_matrix(0)
