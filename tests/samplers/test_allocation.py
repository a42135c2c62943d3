"""The numbers of parts of most progress per cost, against every other choice."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.samplers import Shares
from dropmuon.samplers.allocation import Rule, best_counts
from tests.samplers.strategies import law

RULES: list[Rule] = ["best-radius", "fixed-radius"]

amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
noises = st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-4, 1e3))


@st.composite
def problems(draw: st.DrawFn, most_layers: int = 4, most_parts: int = 5) -> dict[str, Any]:
    b = draw(st.integers(1, most_layers))

    def vector(of: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(of, min_size=b, max_size=b))

    return {
        "backward": vector(amounts),
        "fixed": draw(st.floats(1e-3, 1e3)),
        "noise": vector(noises),
        "gain": vector(amounts),
        "parts": draw(st.integers(1, most_parts)),
        "rule": draw(st.sampled_from(RULES)),
    }


def criterion(counts: tuple[int, ...], problem: dict[str, Any]) -> float:
    """Progress per cost, written out."""
    power = 1.0 if problem["rule"] == "best-radius" else 0.5
    shares = [n / problem["parts"] for n in counts]
    made = math.fsum(
        w / (1.0 + nu / q) ** power
        for w, nu, q in zip(problem["gain"], problem["noise"], shares, strict=True)
    )
    paid = math.fsum(B * q for B, q in zip(problem["backward"], shares, strict=True))
    return made / (problem["fixed"] + paid)


def every_choice(problem: dict[str, Any]) -> list[tuple[int, ...]]:
    m, hidden = problem["parts"], len(problem["backward"]) - 1
    lower = itertools.combinations_with_replacement(range(1, m + 1), hidden)
    return [(*counts, m) for counts in lower]


@law
@given(problems())
def test_no_other_numbers_of_parts_make_more_progress_per_cost(problem: dict[str, Any]) -> None:
    counts = best_counts(**problem)
    assert counts in every_choice(problem)
    best = max(criterion(other, problem) for other in every_choice(problem))
    assert criterion(counts, problem) >= best * (1 - 1e-10)


@law
@given(problems())
def test_of_equals_the_largest_are_taken(problem: dict[str, Any]) -> None:
    counts = best_counts(**problem)
    value = criterion(counts, problem)
    for other in every_choice(problem):
        if all(n >= k for n, k in zip(other, counts, strict=True)) and other != counts:
            assert criterion(other, problem) < value


@law
@given(problems(most_layers=12, most_parts=16))
def test_full_shares_are_never_better(problem: dict[str, Any]) -> None:
    counts = best_counts(**problem)
    full = (problem["parts"],) * len(counts)
    assert counts == full or criterion(counts, problem) > criterion(full, problem)
    assert Shares([n / problem["parts"] for n in counts]).counts(problem["parts"]) == counts


@law
@given(problems(), st.sampled_from([0.25, 4.0, 1024.0]))
def test_units_of_cost_and_gain_do_not_matter(problem: dict[str, Any], unit: float) -> None:
    other = problem | {
        "backward": [unit * B for B in problem["backward"]],
        "fixed": unit * problem["fixed"],
        "gain": [w / unit for w in problem["gain"]],
    }
    assert best_counts(**other) == best_counts(**problem)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_known_in_advance(rule: Rule) -> None:
    backward, gain = [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]
    assert best_counts(backward, 4.0, 0.0, gain, 4, rule) == (1, 1, 4)  # no noise: the least
    assert best_counts(backward, 4.0, math.inf, gain, 4, rule) == (4, 4, 4)  # no signal
    assert best_counts(backward, 4.0, 1.0, 0.0, 4, rule) == (4, 4, 4)  # nothing to gain
    assert best_counts([0.0] * 3, 4.0, 1.0, gain, 4, rule) == (4, 4, 4)  # nothing to save
    assert best_counts(backward, 1e9, 1.0, gain, 4, rule) == (4, 4, 4)  # hardly anything to save
    assert best_counts(backward, 4.0, 1.0, gain, 1, rule) == (1, 1, 1)
    assert best_counts([1.0], 0.0, 1.0, 1.0, 7, rule) == (7,)


def test_many_layers_and_parts_agree_with_a_dynamic_program() -> None:
    rng = np.random.default_rng(5)
    b, m = 30, 8
    backward, noise, gain = rng.exponential(size=(3, b))
    found = best_counts(backward, 20.0, noise, gain, m)
    problem = {"backward": backward, "fixed": 20.0, "noise": noise, "gain": gain}
    value = criterion(found, problem | {"parts": m, "rule": "best-radius"})
    grid = np.arange(1, m + 1) / m
    net = gain[:, None] / (1 + noise[:, None] / grid) - value * backward[:, None] * grid
    best = np.zeros(m)
    for row in net[:-1]:
        best = np.maximum.accumulate(best + row)
    # at the best ratio, no counts gain more than the ratio times what they cost
    assert best[-1] + net[-1, -1] - value * 20.0 == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"backward": [1.0, -1.0]}, r"backward must be finite and at least 0, got \[1.0, -1.0\]"),
        ({"backward": [[1.0]]}, "backward must have one number per layer, got shape"),
        ({"backward": []}, "backward must have one number per layer, got shape"),
        ({"noise": [1.0, math.nan]}, "noise must be at least 0, got"),
        ({"noise": [1.0]}, "noise must have one number per layer, 2, got shape"),
        ({"gain": math.inf}, "gain must be finite and at least 0"),
        ({"gain": "much"}, "gain must be numbers, got 'much'"),
        ({"fixed": -1.0}, "fixed must be a finite number of at least 0, got -1.0"),
        ({"fixed": 0.0, "backward": [0.0, 0.0]}, "must not all be 0"),
        ({"parts": 0}, "parts must be a whole number of at least 1, got 0"),
        ({"rule": "best"}, "rule must be one of best-radius, fixed-radius, got 'best'"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    valid = {"backward": [1.0, 1.0], "fixed": 1.0, "noise": 1.0, "gain": 1.0, "parts": 4}
    with pytest.raises(ValueError, match=message):
        best_counts(**(valid | changed))  # type: ignore[arg-type]
