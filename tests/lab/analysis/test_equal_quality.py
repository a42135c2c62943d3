"""Distances between curves at equal quality: their laws, their bounds, and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dropmuon.lab.analysis.equal_quality import Distance, Points, best_so_far, distances

LADDER = np.array([0.5, 0.7, 1.0, 1.4, 2.0])

shapes = st.tuples(st.integers(1, 4), st.integers(2, 5))
eighths = st.integers(-40, 40).map(lambda number: number / 8)
qualities = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=eighths))
"""In eighths, so that sums over seeds are exact in any order."""


def points(quality: np.ndarray, speed: float = 1.0) -> Points:
    """Points with these qualities at the costs of a ladder, for a method of this speed."""
    seeds, rungs = quality.shape
    return Points(np.tile(1.5 ** np.arange(rungs), (seeds, 1)) / speed, quality)


def values(found: Distance) -> list[float]:
    ends = [end for end in (found.low, found.high) if end is not None]
    return [found.least, found.most, *ends]


@given(qualities)
def test_a_curve_is_the_best_quality_so_far(quality: np.ndarray) -> None:
    for row, found in zip(quality, best_so_far(quality), strict=True):
        assert found.tolist() == [max(row[: rung + 1]) for rung in range(len(row))]


@given(qualities)
def test_identical_curves_are_at_distance_one(quality: np.ndarray) -> None:
    for found in distances(points(quality), points(quality)):
        np.testing.assert_allclose(values(found), 1.0, rtol=1e-12)


@given(qualities, st.floats(0.2, 5.0))
def test_the_same_curve_at_a_part_of_the_cost_is_at_the_distance_of_that_part(
    quality: np.ndarray, speed: float
) -> None:
    for found in distances(points(quality, speed), points(quality)):
        np.testing.assert_allclose(values(found), speed, rtol=1e-12)


@given(qualities, st.floats(0.01, 100.0), st.randoms())
def test_units_of_cost_and_the_order_of_seeds_do_not_matter(
    quality: np.ndarray, unit: float, random
) -> None:
    order = list(range(len(quality)))
    random.shuffle(order)
    other = quality[:, ::-1]
    found = distances(points(quality), points(other))
    changed = distances(points(quality[order], unit), points(other[order], unit))
    for one, two in zip(found, changed, strict=True):
        assert one.least == pytest.approx(two.least, rel=1e-6)
        assert one.most == pytest.approx(two.most, rel=1e-6)
        assert one.cost == pytest.approx(two.cost * unit, rel=1e-6)


@given(st.floats(0.6, 1.6))
def test_the_way_back_is_the_inverse(speed: float) -> None:
    cost, rising = np.array([[1.0, 2.0, 4.0]]), np.array([[0.0, 1.0, 2.0]])
    there = distances(Points(cost / speed, rising), Points(cost, rising))
    back = distances(Points(cost, rising), Points(cost / speed, rising))
    assert there[1].ratio * back[1].ratio == pytest.approx(1.0)


def test_between_rungs_quality_is_linear_in_the_logarithm_of_cost() -> None:
    cost = np.array([[1.0, 4.0]])
    found = distances(Points(cost, np.array([[0.5, 0.9]])), Points(cost, np.array([[0.0, 1.0]])))
    assert found[0].ratio == pytest.approx(2.0)
    assert (found[0].quality, found[0].cost) == (0.5, 1.0)


def test_where_the_baseline_never_arrives_the_distance_is_a_bound() -> None:
    base = Points(LADDER[None], LADDER[None])
    better, worse = (Points(LADDER[None], LADDER[None] + shift) for shift in (0.8, -0.8))
    above = distances(better, base)
    assert above[2].ratio == pytest.approx(1.4 * (2 / 1.4) ** ((1.8 - 1.4) / (2 - 1.4)))
    assert [above[3].least, above[3].most] == [pytest.approx(2 / 1.4), math.inf]
    assert above[3].ratio is None
    below = distances(worse, base)
    assert [below[2].least, below[2].most] == [0.0, pytest.approx(0.5)]


def test_a_budget_that_ends_worse_counts_as_the_best_before_it() -> None:
    cost = np.array([[1.0, 2.0, 8.0]])
    overfits = Points(cost, np.array([[0.0, 1.0, -5.0]]))
    found = distances(overfits, Points(2 * cost, np.array([[0.0, 1.0, 2.0]])))
    assert [each.quality for each in found] == [0.0, 1.0, 1.0]
    assert [each.cost for each in found] == pytest.approx([1.0, 2.0, 2.0])
    assert [each.ratio for each in found] == pytest.approx([2.0, 2.0, 2.0])


def test_costs_need_not_be_in_the_order_of_rungs() -> None:
    cost, quality = np.array([[4.0, 1.0, 2.0]]), np.array([[2.0, 0.0, 1.0]])
    found = distances(Points(cost / 2, quality), Points(cost, quality))
    assert [each.quality for each in found] == [2.0, 0.0, 1.0]
    assert [each.ratio for each in found] == pytest.approx([2.0, 2.0, 2.0])


def test_the_interval_covers_the_ratio_and_one_seed_has_none() -> None:
    rng = np.random.default_rng(3)
    base = np.log(LADDER) + 0.05 * rng.normal(size=(5, 5))
    own = np.log(1.4 * LADDER) + 0.05 * rng.normal(size=(5, 5))
    cost = np.tile(LADDER, (5, 1))
    found = distances(Points(cost, own), Points(cost, base))[2]
    assert 1.2 < found.low < found.ratio < found.high < 1.6
    single = distances(Points(cost[:1], own[:1]), Points(cost[:1], base[:1]))[2]
    assert (single.low, single.high) == (None, None)


def test_seeds_that_differ_alike_leave_the_interval_narrow() -> None:
    """Seeds are drawn for both methods together, so that what they share cancels."""
    shift = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])[:, None]
    cost = np.tile(LADDER, (5, 1))
    base, own = np.log(LADDER) + shift, np.log(1.4 * LADDER) + shift
    found = distances(Points(cost, own), Points(cost, base))[2]
    assert [found.low, found.high] == pytest.approx([1.4, 1.4])


@pytest.mark.parametrize(("seeds", "least", "most"), [(3, 0.6, 0.85), (5, 0.85, 0.98)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(
    seeds: int, least: float, most: float
) -> None:
    """Three seeds cover less: an interval within what was seen cannot reach 95 % with them."""
    rng, covered, times = np.random.default_rng(7), 0, 120
    cost = np.tile(LADDER, (seeds, 1))
    for _ in range(times):
        shared = 0.02 * rng.normal(size=(seeds, 1))
        base, own = (
            -0.25 * (LADDER * speed) ** -0.9 + shared + 0.01 * rng.normal(size=(seeds, 5))
            for speed in (1.0, 1.4)
        )
        found = distances(Points(cost, own), Points(cost, base))[2]
        covered += found.low <= 1.4 <= found.high
    assert least <= covered / times <= most


@pytest.mark.parametrize(
    ("cost", "quality", "words"),
    [
        (np.ones((2, 3)), np.ones((2, 2)), "arrays of one shape"),
        (np.zeros((1, 2)), np.ones((1, 2)), "cost must be positive"),
        (np.ones((1, 2)), np.array([[1.0, math.nan]]), "quality must be finite"),
    ],
)
def test_points_that_make_no_curve_are_rejected(cost, quality, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Points(cost, quality)


def test_methods_with_other_seeds_are_rejected() -> None:
    one, two = (Points(np.ones((n, 2)), np.ones((n, 2))) for n in (1, 2))
    with pytest.raises(ValueError, match="same seeds, got 1 and 2"):
        distances(one, two)
