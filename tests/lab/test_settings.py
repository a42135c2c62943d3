"""Schedules: factors on learning rates as functions of the spent budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.lab.settings import SCHEDULES, RateSchedule

shares = st.floats(0.0, 1.0)
named = st.sampled_from(SCHEDULES)


def factors(schedule: RateSchedule, steps: int) -> list[float]:
    """Of so many equal steps."""
    return [schedule.factor(k / steps, (k + 1) / steps) for k in range(steps)]


def test_linear_is_that_of_torch_over_equal_steps() -> None:
    assert factors(RateSchedule("linear"), 4) == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_cosine_is_half_a_cosine() -> None:
    assert factors(RateSchedule("cosine"), 4)[::2] == pytest.approx([1.0, 0.5])


def test_wsd_warms_up_stays_and_decays() -> None:
    found = factors(RateSchedule("wsd", warm_up=0.2, decay=0.4), 10)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_constant_never_changes_without_a_warm_up() -> None:
    assert set(factors(RateSchedule(), 7)) == {1.0}
    assert factors(RateSchedule(warm_up=0.5), 4) == pytest.approx([0.5, 1, 1, 1])


@given(named, st.floats(0.0, 0.5), st.floats(0.1, 0.5), st.integers(1, 50))
def test_no_step_has_a_factor_of_zero_or_above_one(
    name: str, warm_up: float, decay: float, steps: int
) -> None:
    assert all(0 < each <= 1 for each in factors(RateSchedule(name, warm_up, decay), steps))


@given(named, st.floats(0.0, 0.5), st.floats(0.1, 0.5), shares, shares)
def test_after_the_warm_up_factors_never_rise(
    name: str, warm_up: float, decay: float, one: float, other: float
) -> None:
    first, second = sorted(warm_up + (1 - warm_up) * share for share in (one, other))
    schedule = RateSchedule(name, warm_up, decay)
    assert schedule.factor(first, 1.0) >= schedule.factor(second, 1.0) - 1e-12


def test_options_of_a_method_change_the_shared_schedule() -> None:
    shared = RateSchedule("linear", warm_up=0.1)
    assert shared.changed({"lr": 0.1}) is shared
    assert shared.changed({"schedule": "wsd", "decay": 0.5}) == RateSchedule("wsd", 0.1, 0.5)
