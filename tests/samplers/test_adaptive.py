"""The rule of adaptive shares: its limits, its order, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.samplers import Adaptive, by_name
from dropmuon.samplers.base import FloatArray

COSTS = (1.0, (0.5, 0.8, 0.6, 0.1))
LAYERS = len(COSTS[1])

noises = st.lists(st.floats(0.0, 50.0), min_size=LAYERS, max_size=LAYERS).map(np.array)


def counts(noise: Any, parts: int = 8, signal: FloatArray | None = None, **given: Any) -> Any:
    fixed, backward = given.pop("costs", COSTS)
    ones = np.ones(LAYERS) if signal is None else signal
    return Adaptive(**given).counts(fixed, backward, ones, np.asarray(noise), parts)


def test_without_noise_hidden_layers_get_one_part_and_the_head_all() -> None:
    assert counts(np.zeros(LAYERS)) == (1, 1, 1, 8)


@pytest.mark.parametrize("signal", [0.0, -1.0])
def test_without_signal_all_layers_get_the_whole_batch(signal: float) -> None:
    assert counts(np.ones(LAYERS), signal=np.full(LAYERS, signal)) == (8,) * LAYERS
    assert counts(np.full(LAYERS, 1e9)) == (8,) * LAYERS


def test_a_common_noise_gives_the_square_root_law() -> None:
    flat, parts = (1.0, (1.0, 1.0, 1.0, 0.0)), 1000
    for noise in (0.01, 0.1, 0.5):
        found = counts(np.array([noise] * 3 + [0.0]), parts, caution=1.0, costs=flat)
        # The head counts too, but makes its progress whatever the shares: they are a bit smaller.
        assert 0.5 * math.sqrt(noise / 3) < found[0] / parts <= math.sqrt(noise / 3) + 1e-3


@given(noise=noises, parts=st.integers(2, 9))
def test_shares_never_promise_less_progress_per_cost_than_full_ones(
    noise: FloatArray, parts: int
) -> None:
    found = np.array(counts(noise, parts, caution=1.0)) / parts
    fixed, backward = COSTS
    progress = np.mean((1 + noise) / (1 + noise / found))
    cost = (fixed + found @ backward) / (fixed + sum(backward))
    assert progress / cost >= 1 - 1e-9
    assert (np.diff(found) >= 0).all()
    assert (found[0] >= 1 / parts, found[-1]) == (True, 1.0)


@given(noise=st.floats(0.0, 50.0), less=st.floats(0.0, 1.0), parts=st.integers(2, 9))
def test_more_noise_or_caution_never_asks_for_fewer_examples(
    noise: float, less: float, parts: int
) -> None:
    high, low = np.full(LAYERS, noise), np.full(LAYERS, less * noise)
    assert all(a >= b for a, b in zip(counts(high, parts), counts(low, parts), strict=True))
    bold = counts(high, parts, caution=1.0)
    assert all(a >= b for a, b in zip(counts(high, parts), bold, strict=True))


def test_intervals_grow_from_every_to_at_most_sixty_four_steps() -> None:
    rule, steps = Adaptive(first=3, every=8), [0]
    while steps[-1] < 1000:
        steps.append(rule.next_measurement(steps[-1]))
    assert steps[:6] == [0, 1, 2, 10, 18, 26]
    gaps = np.diff(steps)[2:]
    assert (np.diff(gaps) >= 0).all()
    assert (gaps[0], gaps[-1]) == (8, 64)


def test_it_has_a_name_and_is_full_before_anything_is_known() -> None:
    sampler = by_name("adaptive")
    assert sampler == Adaptive()
    rng = np.random.default_rng(0)
    assert sampler.sample(3, rng) == (0, 1, 2)
    assert sampler.support(3) == ((0, 1, 2), (1, 2), (2,))
    assert [each.tolist() for each in sampler.marginals(3)] == [[1.0] * 3, [1.0] * 3]
    assert not sampler.needs_progress


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"caution": -1.0}, "caution must be a finite number of at least 0, got -1.0"),
        ({"caution": math.inf}, "caution must be a finite number"),
        ({"first": 0}, "first must be a whole number of at least 1, got 0"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"costs": (1.0, (1.0, -1.0))}, "backward must be finite and at least 0"),
        ({"costs": (-1.0, (1.0, 1.0))}, "fixed must be a finite number of at least 0"),
        ({"costs": 3.0}, r"costs must be a pair \(fixed, backward of each layer\), got 3.0"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adaptive(**given)


def test_costs_of_another_number_of_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="costs must have the backward of each of the 3 layers"):
        Adaptive(COSTS).check(3)
