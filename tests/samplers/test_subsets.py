"""Windows, blocks, single layers and random subsets."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.samplers import (
    Full,
    Nice,
    Partition,
    Serial,
    Submodel,
    linear,
    uniform,
)
from tests.samplers.strategies import PROGRESS, SCHEDULES, SIZES, assert_same_marginals, law


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


def test_a_window_may_leave_a_start_out():
    Submodel(2, [0.5, 0.0, 0.5]).check(4)


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


@law
@given(SIZES)
def test_nice_of_all_layers_is_full(b):
    assert_same_marginals(Nice(b), Full(), b)
    assert Nice(b).support(b) == Full().support(b)
    assert Nice(b).sample(b, np.random.default_rng(b)) == tuple(range(b))


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


@pytest.mark.parametrize("make", [Nice, Submodel])
def test_tau_is_a_positive_integer(make):
    with pytest.raises(ValueError, match="tau must be a whole number of at least 1, got 0; give"):
        make(0)
    with pytest.raises(
        ValueError, match=r"tau must be a whole number of at least 1, got 1\.5; give"
    ):
        make(1.5)
    assert repr(make(np.int64(2))) == repr(make(2))


@pytest.mark.parametrize("sampler", [Nice(4), Submodel(4), Partition([[0], [1]])])
def test_sample_support_and_marginals_refuse_too_few_layers(sampler):
    for use in (
        lambda: sampler.sample(3, np.random.default_rng(0)),
        lambda: sampler.support(3),
        lambda: sampler.marginals(3),
    ):
        with pytest.raises(ValueError, match=r"^(tau|blocks) must .*, got .*; "):
            use()
