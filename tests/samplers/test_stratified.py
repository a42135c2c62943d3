"""Windows of steps: every draw keeps its distribution, and a window has no luck in it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.samplers import Adaptive, Nice, Progressive, Sampler, Serial, Stratified, epoch_shift
from dropmuon.step.draws import Draws
from tests.samplers.strategies import law

B = 4


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 24),
    window=st.integers(0, 1000),
    weights=st.lists(st.floats(0.01, 1.0), min_size=B, max_size=B),
)
@law
def test_a_window_holds_every_set_as_often_as_its_probability_says(
    seed: int, steps: int, window: int, weights: list[float]
) -> None:
    p = np.array(weights) / sum(weights)
    draws = Draws(Stratified(Serial(p), steps), seed=seed, full_start=False)
    counts = Counter(draws.at(window * steps + place, B) for place in range(steps))
    for layer in range(B):
        assert abs(counts[layer,] - steps * p[layer]) < 1 + 1e-9


@pytest.mark.parametrize("sampler", [Progressive([0.1, 0.2, 0.3, 0.4]), Nice(2)], ids=str)
@pytest.mark.parametrize("place", [0, 3])
def test_every_place_of_a_window_has_the_distribution_of_the_sampler(
    sampler: Sampler, place: int
) -> None:
    draws = Draws(Stratified(sampler, 5), seed=1, full_start=False)
    windows = 4000
    counts = Counter(draws.at(5 * window + place, B) for window in range(windows))
    for active, probability in sampler.distribution(B).items():
        deviation = (probability * (1 - probability) / windows) ** 0.5
        assert abs(counts[active] / windows - probability) < 5 * deviation


def test_the_order_within_windows_changes() -> None:
    draws = Draws(Stratified(Progressive(), B), full_start=False)
    orders = {tuple(draws.at(B * w + i, B)[0] for i in range(B)) for w in range(50)}
    assert len(orders) > 10
    assert all(sorted(order) == list(range(B)) for order in orders)


def test_a_draw_of_a_window_has_the_progress_of_its_own_step() -> None:
    steep = Progressive(epoch_shift(50.0))
    draws = Draws(Stratified(steep, 10), total_steps=10, full_start=False)
    assert [draws.at(step, B)[0] for step in (0, 9)] == [0, B - 1]


def test_layers_move_equally_often_under_all_seeds() -> None:
    def moves(sampler: Sampler, seed: int) -> float:
        draws = Draws(sampler, seed=seed, full_start=False)
        return sum(0 in draws.at(step, B) for step in range(64))

    spread = {
        name: np.std([moves(sampler, seed) for seed in range(20)])
        for name, sampler in {"plain": Progressive(), "even": Stratified(Progressive(), 8)}.items()
    }
    assert spread["even"] == 0.0
    assert spread["plain"] > 2.0


@pytest.mark.parametrize("sampler", [Adaptive(), Stratified(Nice(2), 3)], ids=str)
def test_windows_need_a_sampler_that_draws(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="sampler must be one that draws a set per step"):
        Stratified(sampler, 4)


@pytest.mark.parametrize("steps", [0, 1.5])
def test_a_window_has_a_whole_number_of_steps(steps: float) -> None:
    with pytest.raises(ValueError, match="steps must be a whole number"):
        Stratified(Nice(2), steps)  # type: ignore[arg-type]
