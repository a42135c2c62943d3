"""Full updates, progressive training, and the names of samplers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dropmuon.samplers import (
    Fixed,
    Full,
    Nice,
    Progressive,
    by_name,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)
from tests.samplers.strategies import PROGRESS, SCHEDULES, SIZES, law


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
    accepted = "adaptive, epoch-shift, exponential, full, linear, quadratic, uniform"
    with pytest.raises(ValueError, match=f"^sampler must be one of {accepted}, got 'unifrom'"):
        by_name("unifrom")
    with pytest.raises(TypeError, match="sampler must be a name or a Sampler, got 3; use"):
        by_name(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sampler must be a name or a Sampler, got None; use"):
        by_name(None)  # type: ignore[arg-type]
