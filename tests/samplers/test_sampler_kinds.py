"""What is true of one sampler, or between two."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.samplers import (
    Arbitrary,
    Fixed,
    Full,
    Nice,
    Partition,
    Progressive,
    Serial,
    Submodel,
    by_name,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)

SCHEDULES = st.one_of(
    st.sampled_from([uniform, linear, quadratic, exponential]),
    st.floats(-2, 2).map(epoch_shift),
)
SIZES = st.integers(1, 40)
PROGRESS = st.floats(0, 1)
law = settings(derandomize=True, deadline=None, max_examples=40)


class Chosen(np.random.Generator):
    """A generator whose uniform numbers are given."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size=None):
        return self.value if size is None else np.full(size, self.value)


def assert_same_marginals(left, right, b, progress=0.0):
    for mine, other in zip(left.marginals(b, progress), right.marginals(b, progress), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)


@law
@given(SCHEDULES, SIZES, PROGRESS)
def test_progressive_reaches_exactly_what_it_moves(schedule, b, progress):
    F, Q = Progressive(schedule).marginals(b, progress)
    np.testing.assert_array_equal(F, Q)


@law
@given(SIZES)
def test_full_has_all_ones(b):
    for marginal in Full().marginals(b):
        np.testing.assert_array_equal(marginal, np.ones(b))
    assert Full().sample(b, np.random.default_rng(0)) == tuple(range(b))


@law
@given(SIZES)
def test_nice_of_all_layers_is_full(b):
    assert_same_marginals(Nice(b), Full(), b)
    assert Nice(b).support(b) == Full().support(b)
    assert Nice(b).sample(b, np.random.default_rng(b)) == tuple(range(b))


@law
@given(SCHEDULES, SIZES, PROGRESS, st.integers(0, 99))
def test_serial_is_a_partition_of_singletons_is_a_window_of_one(schedule, b, progress, seed):
    serial = Serial(schedule)
    for twin in (Partition([[i] for i in range(b)], schedule), Submodel(1, schedule)):
        assert_same_marginals(serial, twin, b, progress)
        assert twin.support(b) == serial.support(b)
        draws = [s.sample(b, np.random.default_rng(seed), progress) for s in (serial, twin)]
        assert draws[0] == draws[1]


@law
@given(SCHEDULES, st.integers(1, 30), st.integers(1, 30), PROGRESS)
def test_windows_move_tau_layers_on_average(schedule, b, tau, progress):
    tau = min(tau, b)
    F, Q = Submodel(tau, schedule).marginals(b, progress)
    assert Q.sum() == pytest.approx(tau, rel=1e-12)
    for i in range(b):
        starts = range(max(0, i - tau + 1), min(i, b - tau) + 1)
        p = schedule(b - tau + 1, progress)
        assert Q[i] == pytest.approx(math.fsum(p[j] for j in starts), rel=1e-12)
        assert F[i] == pytest.approx(math.fsum(p[: i + 1]), rel=1e-12)


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


@law
@given(SIZES, SIZES, st.integers(0, 99))
def test_nice_draws_the_layers_with_the_smallest_keys(b, tau, seed):
    tau = min(tau, b)
    keys = np.random.default_rng(seed).random(b)
    assert Nice(tau).sample(b, np.random.default_rng(seed)) == tuple(sorted(keys.argsort()[:tau]))


@law
@given(st.integers(1, 30), st.integers(1, 30))
def test_nice_equals_the_binomial_formula(b, tau):
    tau = min(tau, b)
    F, Q = Nice(tau).marginals(b)
    exact = [1 - Fraction(math.comb(b - i, tau), math.comb(b, tau)) for i in range(1, b + 1)]
    np.testing.assert_allclose(F, [float(x) for x in exact], rtol=1e-13)
    np.testing.assert_array_equal(Q, np.full(b, tau / b))


def test_nice_serves_two_thousand_layers():
    b, tau = 2000, 1000
    F, Q = Nice(tau).marginals(b)
    exact = [1 - Fraction(math.comb(b - 1 - i, tau), math.comb(b, tau)) for i in (0, 1, 7, 1500)]
    np.testing.assert_allclose(F[[0, 1, 7, 1500]], [float(x) for x in exact], rtol=1e-13)
    assert F[-1] == 1.0
    assert (Q <= F).all()
    drawn = Nice(tau).sample(b, np.random.default_rng(0))
    assert len(set(drawn)) == tau
    assert list(drawn) == sorted(drawn)
    with pytest.raises(ValueError, match=r"got 1000 of 2000 layers; use marginals\(\)"):
        Nice(tau).support(b)


def test_nice_lists_a_support_up_to_the_limit_and_no_further():
    assert len(Nice(2).support(447)) == math.comb(447, 2) == 99_681
    with pytest.raises(ValueError, match="at most 100000 sets"):
        Nice(2).support(448)


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


def test_a_window_may_leave_a_start_out():
    Submodel(2, [0.5, 0.0, 0.5]).check(4)


@pytest.mark.parametrize("sampler", [Nice(4), Submodel(4), Partition([[0], [1]])])
def test_sample_support_and_marginals_refuse_too_few_layers(sampler):
    for use in (
        lambda: sampler.sample(3, np.random.default_rng(0)),
        lambda: sampler.support(3),
        lambda: sampler.marginals(3),
    ):
        with pytest.raises(ValueError, match=r"^(tau|blocks) must .*, got .*; "):
            use()


@pytest.mark.parametrize("make", [Nice, Submodel])
def test_tau_is_a_positive_integer(make):
    with pytest.raises(ValueError, match="tau must be a whole number of at least 1, got 0; give"):
        make(0)
    with pytest.raises(
        ValueError, match=r"tau must be a whole number of at least 1, got 1\.5; give"
    ):
        make(1.5)
    assert repr(make(np.int64(2))) == repr(make(2))


@pytest.mark.parametrize(
    ("blocks", "probabilities", "message"),
    [
        ([], uniform, "blocks must not be empty, got no block; give"),
        ([[0], []], uniform, r"blocks must name at least one layer per set, got \[\]; name"),
        ([[0, 1], [1]], uniform, "blocks must be disjoint, got layer 1 more than once; keep"),
        ([[0, 0], [1]], uniform, r"must name a layer once per set, got \(0, 0\); remove"),
        ([[0], [2]], uniform, "cover every layer from 0 to 2, got none with layer 1; add"),
        ([[0], [-1]], uniform, r"blocks must hold layer indices from 0 up, got \(-1,\); count"),
        ([[0], [1]], [1.0, 0.0], "got 0 for layer 1 .*: layer 1 would never be reached"),
        ([[0], [1]], [0.5, 0.25, 0.25], "probabilities must have 2 entries, got 3; give"),
    ],
)
def test_partition_refuses_what_is_none(blocks, probabilities, message):
    with pytest.raises(ValueError, match=message):
        Partition(blocks, probabilities)


def test_layer_indices_are_integers():
    with pytest.raises(ValueError, match="blocks must hold layer indices, got 0; give"):
        Partition([0, 1])
    with pytest.raises(ValueError, match="distribution must hold layer indices, got '0'"):
        Arbitrary({"0": 1.0})


def test_contiguous_blocks_cut_the_layers_and_keep_the_rest():
    assert Partition.contiguous(5, 2, linear) == Partition([[0, 1], [2, 3], [4]], linear)
    assert Partition.contiguous(4, 2).blocks == ((0, 1), (2, 3))
    assert Partition.contiguous(2, 9).blocks == ((0, 1),)
    with pytest.raises(ValueError, match="size must be a whole number of at least 1, got 0; give"):
        Partition.contiguous(4, 0)
    with pytest.raises(
        ValueError, match="num_layers must be a whole number of at least 1, got 0; give"
    ):
        Partition.contiguous(0, 4)


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


@pytest.mark.parametrize("p", [uniform, linear, exponential, epoch_shift(), epoch_shift(1.0)])
def test_equality_looks_at_everything(p):
    assert Progressive(p) == Progressive(p)
    assert Progressive(p) != Serial(p)
    assert Progressive(p) != Progressive(quadratic)
    assert Submodel(2, p) != Submodel(3, p)
    assert Partition([[0], [1]], p) != Partition([[1], [0]], p)
    assert Nice(2) != Nice(3)


def test_reprs_read_as_they_are_written():
    assert repr(Full()) == "Full()"
    assert repr(Nice(3)) == "Nice(tau=3)"
    assert repr(Progressive()) == "Progressive(probabilities=uniform)"
    assert repr(Serial("epoch-shift")) == "Serial(probabilities=epoch_shift(alpha=0.5))"
    assert (
        repr(Partition([[1, 0], [2]], np.array([0.25, 0.75])))
        == "Partition(blocks=((0, 1), (2,)), probabilities=Fixed((0.25, 0.75)))"
    )


def test_reprs_of_long_arrays_are_not_cut():
    p = np.random.default_rng(0).dirichlet(np.ones(3000))
    text = repr(Progressive(p))
    assert "..." not in text
    assert eval(text, {"Progressive": Progressive, "Fixed": Fixed}) == Progressive(p)


def test_names_stand_for_progressive_samplers_and_full():
    assert by_name("full") == Full()
    assert by_name("uniform") == Progressive(uniform)
    assert by_name("linear") == Progressive(linear)
    assert by_name("quadratic") == Progressive(quadratic)
    assert by_name("exponential") == Progressive(exponential)
    assert by_name("epoch-shift") == Progressive(epoch_shift(0.5))
    sampler = Nice(2)
    assert by_name(sampler) is sampler


def test_unknown_names_are_told_the_accepted_ones():
    accepted = "epoch-shift, exponential, full, linear, quadratic, uniform"
    with pytest.raises(ValueError, match=f"^sampler must be one of {accepted}, got 'unifrom'"):
        by_name("unifrom")
    with pytest.raises(ValueError, match=f"^sampler must be one of {accepted}, got 'adaptive'"):
        by_name("adaptive")
    with pytest.raises(TypeError, match="sampler must be a name or a Sampler, got 3; use"):
        by_name(3)
    with pytest.raises(TypeError, match="sampler must be a name or a Sampler, got None; use"):
        by_name(None)
