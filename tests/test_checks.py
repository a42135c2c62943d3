"""What is refused, the sentence that says so, and the line that a warning names."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon, checks, layer_groups, presets, samplers

# Whole numbers


@given(st.integers(), st.integers(), st.none() | st.integers())
def test_a_whole_number_is_accepted_exactly_from_the_least_to_the_most(
    value: int, least: int, most: int | None
) -> None:
    accepted = least <= value and (most is None or value <= most)
    if accepted:
        assert checks.whole_number("n", value, least=least, most=most) == value
    else:
        with pytest.raises(ValueError, match=f"^n must be a whole number .*, got {value}$"):
            checks.whole_number("n", value, least=least, most=most)


@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3), torch.tensor(3)], ids=repr)
def test_every_kind_of_whole_number_becomes_an_int(given: Any) -> None:
    found = checks.whole_number("n", given)
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize("given", [1.0, np.float64(2), "2", None, True, False, [1], math.nan])
def test_what_is_no_whole_number_is_refused(given: Any) -> None:
    expected = f"n must be a whole number of at least 0, got {given!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        checks.whole_number("n", given, least=0)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({}, "steps must be a whole number of at least 1, got 0"),
        ({"least": 2}, "steps must be a whole number of at least 2, got 0"),
        ({"least": 1, "most": 4}, "steps must be a whole number from 1 to 4, got 0"),
        ({"remedy": "use 1"}, "steps must be a whole number of at least 1, got 0; use 1"),
    ],
)
def test_a_refused_number_is_told_its_limits_and_the_remedy(
    limits: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        checks.whole_number("steps", 0, **limits)


# Numbers of at least 0


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_finite_numbers_of_at_least_0_are_accepted_as_they_are(value: float) -> None:
    found = checks.nonnegative_number("lr", value)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("given", [2, np.float32(2), np.int64(2), Fraction(2)], ids=repr)
def test_every_kind_of_real_number_becomes_a_float(given: Any) -> None:
    found = checks.nonnegative_number("lr", given)
    assert type(found) is float
    assert found == 2.0


@pytest.mark.parametrize(
    "given", [-1.0, -1e-300, math.nan, math.inf, -math.inf, "0.1", None, 1j, [0.1]]
)
def test_numbers_that_are_negative_or_not_finite_are_refused(given: Any) -> None:
    expected = f"lr must be a finite number of at least 0, got {given!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        checks.nonnegative_number("lr", given)


# Names


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("unifrm", "; did you mean 'uniform'?"),
        ("UNIFORM", "; did you mean 'uniform'?"),
        ("ful", "; did you mean 'full'?"),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_an_unknown_name_is_refused_with_all_names_and_the_nearest(given: str, hint: str) -> None:
    error = checks.unknown_name("sampler", given, ["uniform", "full"])
    assert isinstance(error, ValueError)
    assert str(error) == f"sampler must be one of full, uniform, got {given!r}{hint}"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (1.5, "a float"),
        ("text", "a str"),
        (None, "a NoneType"),
        (nn.Linear(1, 1), "a Linear"),
        (nn.Linear, "the class Linear"),
    ],
)
def test_a_value_is_called_by_its_kind_and_a_class_by_its_name(given: object, kind: str) -> None:
    assert checks.kind_of(given) == kind


# Warnings


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def without_gradients() -> DropMuon:
    return DropMuon(nn.Linear(2, 2))


def half_used() -> DropMuon:
    """Return an optimizer of a model whose last layer takes no part in the loss."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0](torch.ones(1, 2)).sum().backward()
    return DropMuon(model, sampler=samplers.Serial())


def scaled_step() -> None:
    """Let torch take the step: the line to name is the call of torch."""
    model = nn.Linear(2, 2)
    chosen, scaler = DropMuon(model), torch.amp.GradScaler("cpu", enabled=False)
    scaler.step(chosen)


def matrix() -> nn.Parameter:
    return nn.Parameter(torch.ones(2, 2))


def rest() -> list[tuple[str, nn.Parameter]]:
    return [("b.weight", matrix())]


@pytest.mark.parametrize(
    "value",
    [2.5, "2", None, True, np.array([1, 2]), torch.tensor(2.5), torch.tensor(True), 0, 10],
    ids=repr,
)
def test_what_is_no_whole_number_from_1_to_9_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="n must be a whole number from 1 to 9, got"):
        checks.whole_number("n", value, most=9)


@pytest.mark.parametrize("value", [10**400, True, -1, float("nan"), float("inf"), "1"])
def test_what_is_no_finite_number_of_at_least_0_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="x must be a finite number of at least 0, got"):
        checks.nonnegative_number("x", value)


# Each case is one line, and that line is what its warning has to name.
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "a message of the caller": ("a message", lambda: checks.warn("a message")),
    "tied weights, DropMuon": ("tied", lambda: DropMuon(tied())),
    "tied weights, by block": ("tied", lambda: DropMuon(tied(), by="block")),
    "tied weights, layer_groups": ("tied", lambda: layer_groups(tied())),
    "tied weights, a preset": ("tied", lambda: presets.muon(tied(), 0.1)),
    "pairs": ("embeddings", lambda: DropMuon([("a.weight", matrix()), *rest()], policy="muon")),
    "pairs, a preset": ("embeddings", lambda: presets.muon([("a.weight", matrix()), *rest()])),
    "no gradient": ("no gradient", lambda: without_gradients().step()),
    "no gradient, with a closure": ("no gradient", lambda: without_gradients().step(lambda: 0.0)),
    "a silent layer": ("no gradient reached", lambda: half_used().step()),
}


def caught(case: Callable[[], Any]) -> warnings.WarningMessage:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        case()
    (one,) = found
    return one


@pytest.mark.parametrize("name", CASES)
def test_a_warning_names_the_line_of_the_user_s_own_code(name: str) -> None:
    message, case = CASES[name]
    found = caught(case)
    assert message in str(found.message)
    assert (found.filename, found.lineno) == (__file__, case.__code__.co_firstlineno)


def test_a_warning_names_the_call_of_torch_that_led_to_it() -> None:
    found = caught(scaled_step)
    last = max(line for *_, line in scaled_step.__code__.co_lines() if line is not None)
    assert (found.filename, found.lineno) == (__file__, last)


def test_a_warning_names_the_innermost_line_of_the_user() -> None:
    def outer(inner: Callable[[], Any]) -> Any:
        return inner()

    def inner() -> DropMuon:
        return DropMuon(tied())

    found = caught(lambda: outer(lambda: outer(inner)))
    assert (found.filename, found.lineno) == (__file__, inner.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("category", [UserWarning, FutureWarning])
def test_a_warning_is_of_the_category_that_was_asked_for(category: type[Warning]) -> None:
    assert caught(lambda: checks.warn("x", category)).category is category


def test_a_warning_is_of_the_user_category_by_default() -> None:
    assert caught(lambda: checks.warn("x")).category is UserWarning
