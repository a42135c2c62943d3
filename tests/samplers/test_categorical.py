"""Samplers that draw one index from a schedule, and distributions that are written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.samplers import (
    Arbitrary,
    Fixed,
    Nice,
    Partition,
    Progressive,
    Schedule,
    Serial,
    Submodel,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)
from tests.samplers.strategies import PROGRESS, SCHEDULES, SIZES, assert_same_marginals, law


class Counted(Schedule):
    """Fixed probabilities that count how often they are asked for."""

    calls = 0

    def _probabilities(self, n, progress):
        self.calls += 1
        return np.array([0.5, 0.25, 0.25])


class Chosen(np.random.Generator):
    """A generator whose uniform numbers are given."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size=None):  # type: ignore[override]
        return self.value if size is None else np.full(size, self.value)


@pytest.mark.parametrize("make", [Progressive, Serial])
@pytest.mark.parametrize("u", [0.0, 0.5, np.nextafter(0.5, 0), np.nextafter(1.0, 0)])
@pytest.mark.parametrize(
    "p",
    [
        (0.0, 0.5, 0.0, 0.5, 0.0),
        (0.5, 0.5, 0.0, 0.0, 0.0),
        (0.0, 0.0, 0.1, 0.2, 0.7),
        (1 / 3, 1 / 3, 1 / 3 - 1e-16, 0.0, 0.0),
    ],
)
def test_an_outcome_of_zero_probability_is_never_drawn(make, u, p):
    drawn = make(p).sample(5, Chosen(float(u)))
    assert p[drawn[0]] > 0


@law
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-3))
def test_extreme_uniform_numbers_hit_the_first_and_the_last_possible_outcome(weights):
    p = np.array(weights) / math.fsum(weights)
    stored = np.array(Fixed(p).probabilities)
    possible = stored.nonzero()[0]
    (lowest,) = Serial(p).sample(p.size, Chosen(0.0))
    (highest,) = Serial(p).sample(p.size, Chosen(float(np.nextafter(1.0, 0))))
    assert lowest == possible[0]
    assert stored[highest] > 0
    assert stored[highest + 1 :].sum() < 1e-14


def test_a_schedule_that_moves_is_drawn_at_its_progress():
    p = Progressive(epoch_shift(5.0))
    rng = np.random.default_rng(0)
    early = [p.sample(10, rng, 0.0)[0] for _ in range(200)]
    late = [p.sample(10, rng, 1.0)[0] for _ in range(200)]
    assert max(early) <= 3
    assert min(late) >= 6


def test_support_joins_all_of_progress():
    def switch(n, progress):
        return np.eye(n)[0 if progress < 0.5 else n - 1]

    assert Serial(switch).support(4) == ((0,), (3,))
    with pytest.raises(ValueError, match="got 0 for layer 1 at progress 0: layer 1 would never"):
        Serial(switch).check(4)


@pytest.mark.parametrize(
    ("sampler", "b", "progress"),
    [
        (Progressive(exponential), 2000, "0"),
        (Progressive(epoch_shift(0.5)), 2000, r"0\.88"),
        (Serial(exponential), 800, "0"),
        (Submodel(3, exponential), 2000, "0"),
    ],
)
def test_underflow_to_zero_is_reported(sampler, b, progress):
    sampler.marginals(b)
    with pytest.raises(
        ValueError,
        match=rf"got 0 for layer 0 at progress {progress} \(.* underflows to zero here\): "
        "the first layer would never be reached; choose a flatter one",
    ):
        sampler.check(b)


@pytest.mark.parametrize("schedule", [uniform, linear, quadratic])
def test_flat_schedules_serve_two_thousand_layers(schedule):
    for sampler in (Progressive(schedule), Serial(schedule), Submodel(500, schedule)):
        sampler.check(2000)
        assert sampler.sample(2000, np.random.default_rng(0))
    Progressive(exponential).check(700)
    Progressive(epoch_shift(0.5)).check(1400)


@pytest.mark.parametrize(
    ("sampler", "b", "message"),
    [
        (
            Progressive([0.0, 1.0]),
            2,
            "got 0 for layer 0 at progress 0: the first layer would never be reached; "
            "give it a positive probability",
        ),
        (Serial([0.5, 0.0, 0.5]), 3, "layer 1 would never be reached"),
        (Submodel(2, [0.5, 0.0, 0.0, 0.5]), 5, "layer 2 would never be reached"),
        (Arbitrary({(0,): 0.5, (1,): 0.5}), 3, "layer 2 would never be reached"),
        (Arbitrary({(0,): 0.5, (1,): 0.5}), 1, "distribution must hold layer .* below 1, got 1"),
        (Progressive([0.5, 0.5]), 3, "probabilities must have 3 entries, got 2; give one"),
        (Serial([0.5, 0.5]), 1, "probabilities must have 1 entries, got 2; give one"),
        (Submodel(2, [0.5, 0.5]), 4, "probabilities must have 3 entries, got 2; give one"),
        (Submodel(4), 3, "tau must be at most the number of layers, 3, got 4; choose"),
        (Nice(4), 3, "tau must be at most the number of layers, 3, got 4; choose"),
        (Partition([[0], [1]]), 3, "blocks must cover exactly the 3 layers .* of 2 layers"),
    ],
)
def test_check_refuses_what_cannot_serve(sampler, b, message):
    with pytest.raises(ValueError, match=message):
        sampler.check(b)


@law
@given(SCHEDULES, SIZES, PROGRESS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_marginals_are_ordered_in_spite_of_rounding(schedule, b, progress, size, random):
    size, layers = min(size, b), random.sample(range(b), b)
    blocks = [layers[i : i + size] for i in range(0, b, size)]
    p = schedule(len(blocks), progress)
    for sampler in (
        Serial(schedule),
        Submodel(size, schedule),
        Partition(blocks, schedule),
        Arbitrary(dict(zip(map(tuple, blocks), p, strict=True))),
        Nice(size),
    ):
        F, Q = sampler.marginals(b, progress)
        assert (Q <= F).all()
        assert (np.diff(F) >= 0).all()
        assert F[-1] == 1.0


def test_what_does_not_change_with_progress_is_computed_once():
    counted = Counted()
    sampler = Serial(counted)
    rng = np.random.default_rng(0)
    for _ in range(5):
        sampler.sample(3, rng)
        assert sampler.distribution(3) == {(0,): 0.5, (1,): 0.25, (2,): 0.25}
    assert counted.calls == 2
    with pytest.raises(ValueError, match="num_layers must be a whole number"):
        sampler.distribution(3.0)  # type: ignore[arg-type]


def test_a_distribution_that_changes_is_that_of_its_progress():
    sampler = Progressive(epoch_shift(1.0))
    for progress in (0.0, 0.5, 1.0):
        p = epoch_shift(1.0)(3, progress)
        assert sampler.distribution(3, progress) == {(0, 1, 2): p[0], (1, 2): p[1], (2,): p[2]}


# Distributions that are written out


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
