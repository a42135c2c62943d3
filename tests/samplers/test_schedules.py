"""Schedules, and what is accepted as probabilities."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.samplers import (
    EpochShift,
    Fixed,
    Progressive,
    as_schedule,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)

law = settings(derandomize=True, deadline=None, max_examples=100)


def steep(n, progress, rate=1.0):
    weights = np.exp(rate * progress * np.arange(n))
    return weights / weights.sum()


class Wave:
    """A callable object with the default repr."""

    def __call__(self, n, progress):
        return np.full(n, 1 / n)


@pytest.mark.parametrize(
    ("schedule", "weight"),
    [
        (uniform, lambda i: 1),
        (linear, lambda i: i + 1),
        (quadratic, lambda i: (i + 1) ** 2),
        (exponential, math.exp),
    ],
)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 100])
def test_named_schedules_are_proportional_to_their_weights(schedule, weight, n):
    weights = [weight(i) for i in range(n)]
    np.testing.assert_allclose(
        schedule(n, 0.3), [w / math.fsum(weights) for w in weights], rtol=1e-13
    )
    assert not schedule.needs_progress


@law
@given(st.integers(1, 40), st.floats(0, 1), st.floats(-3, 3))
def test_epoch_shift_is_the_papers_formula(b, progress, alpha):
    w = [math.exp(alpha * ((1 - progress) * (b - 1 - i) + progress * i)) for i in range(b)]
    W = sum(w)
    np.testing.assert_allclose(epoch_shift(alpha)(b, progress), [x / W for x in w], rtol=1e-11)


@law
@given(st.integers(2, 60), st.floats(0.01, 2))
def test_epoch_shift_favours_shallow_at_first_and_deep_at_last(b, alpha):
    schedule = epoch_shift(alpha)
    assert (np.diff(schedule(b, 0.0)) < 0).all()
    assert (np.diff(schedule(b, 1.0)) > 0).all()
    np.testing.assert_allclose(schedule(b, 0.0), schedule(b, 1.0)[::-1], rtol=1e-14)
    np.testing.assert_allclose(schedule(b, 0.5), np.full(b, 1 / b), rtol=1e-12)


@law
@given(st.integers(1, 60), st.floats(0, 1))
def test_epoch_shift_without_sharpness_is_uniform(b, progress):
    np.testing.assert_array_equal(epoch_shift(0.0)(b, progress), uniform(b))


@pytest.mark.parametrize(
    "schedule",
    [uniform, linear, quadratic, exponential, *map(epoch_shift, (0.5, -0.5, 50.0, 1e308))],
)
@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_schedules_stay_finite_for_two_thousand_outcomes(schedule, progress):
    with np.errstate(all="raise"):
        p = schedule(2000, progress)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1, abs=1e-12)


def test_epoch_shift_defaults_to_the_papers_alpha():
    assert epoch_shift() == epoch_shift(0.5) == as_schedule("epoch-shift") == EpochShift(0.5)
    assert epoch_shift().needs_progress
    assert repr(epoch_shift(np.float64(0.5))) == "epoch_shift(alpha=0.5)"


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf])
def test_alpha_must_be_finite(alpha):
    with pytest.raises(ValueError, match=rf"alpha must be finite, got {alpha}; the paper"):
        epoch_shift(alpha)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("uniform", uniform),
        ("linear", linear),
        ("quadratic", quadratic),
        ("exponential", exponential),
        ("epoch-shift", epoch_shift()),
    ],
)
def test_names_stand_for_schedules(name, schedule):
    assert as_schedule(name) == schedule
    assert as_schedule(schedule) is schedule
    for twin in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert twin == schedule


def test_the_named_schedules_differ():
    assert len({uniform, linear, quadratic, exponential, epoch_shift(), epoch_shift(1)}) == 6


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ([0.5, 0.43], r"^probabilities must sum to 1, got 0\.93; divide them by their sum$"),
        ([0.5, 0.500002], r"^probabilities must sum to 1, got 1\.000002; divide"),
        ([0.0, 0.0], r"^probabilities must sum to 1, got 0; make at least one of them positive$"),
        ([1.1, -0.1], r"^probabilities must not be negative, got -0\.1 at index 1; use"),
        ([math.nan, 1.0], r"^probabilities must be finite, got nan at index 0; use"),
        ([0.5, math.inf], r"^probabilities must be finite, got inf at index 1; use"),
        ([], r"^probabilities must not be empty, got no entries; give"),
        ([[0.5, 0.5]], r"^probabilities must be one-dimensional, got shape \(1, 2\); give"),
        (1.0, r"^probabilities must be one-dimensional, got shape \(\); give"),
        ("unifrom", r"^probabilities must be one of epoch-shift, .*, got 'unifrom'; did you"),
    ],
)
def test_bad_probabilities_are_named(given_values, message):
    with pytest.raises(ValueError, match=message):
        as_schedule(given_values)
    with pytest.raises(ValueError, match=message):
        Progressive(given_values)


@pytest.mark.parametrize("wrong", [["a", "b"], {"a": 1}, [[1.0], [0.5, 0.5]]])
def test_what_is_not_numbers_is_named(wrong):
    with pytest.raises(TypeError, match=r"probabilities must be numbers, got .*; give an array"):
        as_schedule(wrong)


@pytest.mark.parametrize("maker", [epoch_shift, EpochShift])
def test_a_maker_of_schedules_must_be_called(maker):
    with pytest.raises(TypeError, match=r"probabilities must be a schedule, got .*; call it"):
        as_schedule(maker)


@law
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-3),
    st.floats(-9e-7, 9e-7),
)
def test_small_errors_of_the_sum_are_removed_exactly_and_once(weights, error):
    given_values = np.array(weights) / math.fsum(weights) * (1 + error)
    fixed = Fixed(given_values)
    assert math.fsum(fixed.probabilities) == 1.0
    np.testing.assert_allclose(fixed.probabilities, given_values, rtol=1e-6)
    assert Fixed(fixed.probabilities) == fixed


def test_fixed_probabilities_are_copied_and_compare_by_value():
    values = np.array([0.25, 0.75])
    fixed = as_schedule(values)
    values[:] = 0.5
    assert fixed == Fixed([0.25, 0.75]) == as_schedule((0.25, 0.75))
    assert repr(fixed) == "Fixed((0.25, 0.75))"
    fixed(2)[:] = 0.0
    np.testing.assert_array_equal(fixed(2), [0.25, 0.75])
    assert repr(Fixed([-0.0, 1.0])) == "Fixed((0.0, 1.0))"


def test_a_length_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="probabilities must have 3 entries, got 2; give one for"):
        Fixed([0.5, 0.5])(3)


@pytest.mark.parametrize("schedule", [uniform, epoch_shift(), as_schedule(steep)])
def test_schedules_refuse_no_outcomes_and_impossible_progress(schedule):
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, got 0"):
        schedule(0, 0.0)
    with pytest.raises(ValueError, match="progress must be between 0 and 1, got 2"):
        schedule(3, 2.0)


def test_functions_are_accepted_and_described_by_name():
    schedule = as_schedule(steep)
    np.testing.assert_allclose(schedule(3, 0.5), steep(3, 0.5), rtol=1e-15)
    assert schedule.needs_progress
    assert repr(schedule) == f"Custom({__name__}.steep)"
    assert schedule == as_schedule(steep)
    assert schedule != as_schedule(Wave())
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    partial = functools.partial(steep, rate=np.arange(2.0))
    assert repr(as_schedule(partial)) == f"Custom(partial({__name__}.steep, rate=[0.0, 1.0]))"
    assert repr(as_schedule(Wave())) == f"Custom({__name__}.Wave)"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([0.5, 0.4], r"broken must sum to 1, got 0\.9; divide them by their sum"),
        ([1.0, 0.0, 0.0], "broken must have 2 entries, got 3; give"),
        ([1.5, -0.5], r"broken must not be negative, got -0\.5 at index 1; use"),
        ([math.nan, 1.0], "broken must be finite, got nan at index 0; use"),
    ],
)
def test_results_of_functions_are_validated_at_each_use(result, message):
    def broken(n, progress):
        return result if progress > 0.5 else [0.5, 0.5]

    sampler = Progressive(broken)
    rng = np.random.default_rng(0)
    sampler.sample(2, rng, 0.0)
    with pytest.raises(ValueError, match=message):
        sampler.sample(2, rng, 1.0)
    with pytest.raises(ValueError, match=message):
        sampler.check(2)


@given(epochs=st.integers(1, 60), per_epoch=st.integers(1, 40), data=st.data())
@law
def test_epoch_shift_by_epochs_is_the_printed_one(
    epochs: int, per_epoch: int, data: st.DataObject
) -> None:
    """Progress is epoch / max_epochs, all through the epoch that a step is in."""
    total = epochs * per_epoch
    step = data.draw(st.integers(0, total - 1))
    printed = epoch_shift(0.5, epochs=epochs)(5, step / total)
    smooth = epoch_shift(0.5)(5, (step // per_epoch) / epochs)
    np.testing.assert_array_equal(printed, smooth)


@pytest.mark.parametrize("epochs", [0, -1, 2.5])
def test_epochs_that_cannot_be_counted_are_refused(epochs: Any) -> None:
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 1"):
        epoch_shift(0.5, epochs=epochs)
