"""Distributions that are written out."""

from __future__ import annotations

import pytest

from dropmuon.samplers import (
    Arbitrary,
    Progressive,
)
from tests.samplers.strategies import assert_same_marginals


@pytest.mark.parametrize(
    ("distribution", "error", "message"),
    [
        ({}, ValueError, "distribution must not be empty, got no sets; give"),
        ({(): 1.0}, ValueError, r"distribution must name at least one layer per set, got \(\)"),
        ({(0, 1): 0.5, (1, 0): 0.5}, ValueError, r"name a set once, got \(0, 1\) twice; add"),
        ({(0, 0): 1.0}, ValueError, r"name a layer once per set, got \(0, 0\)"),
        ({(0,): 0.5}, ValueError, r"probabilities must sum to 1, got 0\.5; divide"),
        ({(0,): 1.5, (1,): -0.5}, ValueError, r"not be negative, got -0\.5"),
        ({(0,): 0.5, (2,): 0.5}, ValueError, "layer 1 would never be reached"),
        ({(0,): 1.0, (0, 1): 0.0}, ValueError, "layer 1 would never be reached"),
        ([(0,)], TypeError, r"distribution must map sets to probabilities, got \[\(0,\)\]"),
    ],
)
def test_arbitrary_refuses_what_is_no_distribution(distribution, error, message):
    with pytest.raises(error, match=message):
        Arbitrary(distribution)


def test_arbitrary_does_not_depend_on_the_order_it_is_written_in():
    one = Arbitrary({(0, 1): 0.25, frozenset({2}): 0.75})
    other = Arbitrary({(2,): 0.75, (1, 0): 0.25})
    assert one == other
    assert repr(one) == repr(other) == "Arbitrary({(0, 1): 0.25, (2,): 0.75})"


def test_arbitrary_writes_out_progressive_training():
    b, p = 4, (0.1, 0.2, 0.3, 0.4)
    literal = Arbitrary({tuple(range(s, b)): p[s] for s in range(b)})
    assert_same_marginals(literal, Progressive(p), b)
