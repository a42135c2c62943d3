"""Draws are a function of (seed, step) and of nothing else."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon, samplers
from dropmuon.step.draws import Draws

LAYERS = 4

SAMPLERS = {
    "full": samplers.Full(),
    "uniform": samplers.Progressive(),
    "fixed": samplers.Progressive([0.1, 0.2, 0.3, 0.4]),
    "epoch-shift": samplers.Progressive(samplers.epoch_shift(0.5)),
    "nice": samplers.Nice(2),
    "submodel": samplers.Submodel(2, [0.5, 0.25, 0.25]),
    "partition": samplers.Partition([(0, 2), (1, 3)], [0.3, 0.7]),
    "serial": samplers.Serial([0.4, 0.3, 0.2, 0.1]),
    "arbitrary": samplers.Arbitrary({(0, 3): 0.2, (1,): 0.5, (1, 2, 3): 0.3}),
}

# Source: release 0.1. A change here makes every checkpoint of that release draw other sets.
GOLDEN_CUTOFFS = {
    0: [0, 0, 6, 6, 3, 3, 4, 4, 4, 6, 6, 7, 1, 4, 2, 1, 6, 6, 4, 0, 3, 0, 4, 7],
    7: [0, 6, 7, 2, 3, 4, 0, 4, 0, 5, 2, 0, 2, 3, 0, 6, 0, 3, 7, 2, 3, 5, 6, 5],
    2**64 - 1: [0, 1, 5, 3, 3, 0, 0, 1, 0, 5, 3, 2, 6, 1, 4, 1, 3, 7, 2, 2, 2, 0, 1, 4],
}
GOLDEN_NICE = [(1, 2), (3, 4), (2, 4), (3, 4), (2, 4), (0, 2), (3, 4), (0, 4), (0, 2), (0, 1)]


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(LAYERS)])


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).square().sum().backward()


def active_sets(optimizer: DropMuon, model: nn.Module, steps: int) -> list[tuple[int, ...]]:
    found = []
    for _ in range(steps):
        found.append(optimizer.active)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    return found


def train(steps: int = 12, **kwargs: Any) -> list[tuple[int, ...]]:
    model = small_model()
    return active_sets(DropMuon(model, lr=0.01, **kwargs), model, steps)


@pytest.mark.parametrize("seed", GOLDEN_CUTOFFS)
def test_the_sequence_of_a_seed_is_that_of_the_first_release(seed: int) -> None:
    draws = Draws(samplers.Progressive(), seed=seed)
    cutoffs = [draws.at(step, 8)[0] for step in range(24)]
    assert cutoffs == GOLDEN_CUTOFFS[seed]


def test_the_sequence_of_sets_is_that_of_the_first_release() -> None:
    draws = Draws(samplers.Nice(2), seed=3, full_start=False)
    assert [draws.at(step, 5) for step in range(10)] == GOLDEN_NICE


@given(
    seed=st.integers(0, 2**64 - 1),
    steps=st.lists(st.integers(0, 10**6), min_size=1, max_size=8),
    name=st.sampled_from(sorted(SAMPLERS)),
    window=st.integers(1, 5),
)
@settings(derandomize=True, deadline=None)
def test_a_draw_depends_on_no_earlier_draw(
    seed: int, steps: list[int], name: str, window: int
) -> None:
    draws = Draws(SAMPLERS[name], seed, window, total_steps=1000)
    forward = {step: draws.at(step, LAYERS) for step in steps}
    other = copy.deepcopy(draws)
    backward_in_time = {step: other.at(step, LAYERS) for step in reversed(steps)}
    assert forward == backward_in_time


def test_global_random_state_is_neither_read_nor_changed() -> None:
    draws = Draws(samplers.Nice(2), seed=5)
    found = []
    for noise in (0, 1):
        random.seed(noise)
        np.random.seed(noise)
        torch.manual_seed(noise)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        found.append([draws.at(step, LAYERS) for step in range(50)])
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        assert before[:2] == after[:2]
        assert torch.equal(before[2], after[2])
    assert found[0] == found[1]


def test_training_draws_what_draws_says_whatever_the_global_generators_do() -> None:
    model = small_model()
    optimizer = DropMuon(model, lr=0.01, seed=11)
    found = []
    for step in range(12):
        random.seed(step)
        np.random.seed(step)
        torch.manual_seed(step)
        torch.rand(step)
        found += active_sets(optimizer, model, 1)
    assert found == [Draws(samplers.Progressive(), seed=11).at(k, LAYERS) for k in range(12)]
    assert found == train(seed=11)


def test_ranks_agree_without_communication() -> None:
    models = [small_model() for _ in range(3)]
    ranks = [DropMuon(model, lr=0.01, seed=2) for model in models]
    for step in range(10):
        assert len({rank.active for rank in ranks}) == 1
        for number, (model, rank) in enumerate(zip(models, ranks, strict=True)):
            torch.manual_seed(100 * step + number)  # every rank has its own data and its own noise
            model(torch.randn(2 + number, 3)).square().sum().backward()
            rank.step()
            rank.zero_grad()


@pytest.mark.parametrize("first", [0, 2**53, 2**63 - 5, 2**63, 2**64 - 10])
def test_seeds_draw_different_sequences(first: int) -> None:
    draws = [Draws(samplers.Progressive(), seed=seed) for seed in range(first, first + 10)]
    assert len({tuple(each.at(step, 8) for step in range(20)) for each in draws}) == 10


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_frequencies_are_the_marginals(name: str, progress: float) -> None:
    steps = 2000
    sampler = SAMPLERS[name]
    draws = Draws(sampler, seed=1, total_steps=1, full_start=False)
    moved, reached = np.zeros(LAYERS), np.zeros(LAYERS)
    pinned = _at_progress(draws, progress)
    for step in range(steps):
        drawn = pinned.at(step, LAYERS)
        moved[list(drawn)] += 1
        reached[drawn[0] :] += 1
    F, Q = sampler.marginals(LAYERS, progress)
    # Five standard deviations of a mean of coin tosses: exact where a probability is 0 or 1.
    for frequency, probability in ((reached / steps, F), (moved / steps, Q)):
        bound = 5 * np.sqrt(probability * (1 - probability) / steps) + 1e-12
        assert (np.abs(frequency - probability) <= bound).all(), (frequency, probability)


def _at_progress(draws: Draws, progress: float) -> Draws:
    class Pinned(Draws):
        def progress(self, step: int) -> float:
            return progress

    return Pinned(draws.sampler, draws.seed, 1, draws.total_steps, draws.full_start)


@pytest.mark.parametrize("full_start", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_a_set_is_kept_for_its_window_and_then_drawn_again(window: int, full_start: bool) -> None:
    found = train(40, sampler=samplers.Nice(2), resample_every=window, full_start=full_start)
    if full_start:
        assert found.pop(0) == (0, 1, 2, 3)
    windows = [found[i : i + window] for i in range(0, len(found), window)]
    assert all(len(set(kept)) == 1 for kept in windows)
    assert len({kept[0] for kept in windows}) > 2
    alone = train(len(windows) + full_start, sampler=samplers.Nice(2), full_start=full_start)
    assert [kept[0] for kept in windows] == alone[full_start:]


@pytest.mark.parametrize("window", [1, 4])
def test_the_sampler_is_told_the_progress_of_the_windows_first_step(window: int) -> None:
    asked = []

    def probabilities(n: int, progress: float) -> list[float]:
        asked.append(progress)
        return [1 / n] * n

    model = small_model()
    sampler = samplers.Progressive(probabilities)
    optimizer = DropMuon(model, lr=0.01, sampler=sampler, total_steps=8, resample_every=window)
    asked.clear()
    active_sets(optimizer, model, 12)
    first = [(step - 1) // window * window + 1 for step in range(1, 13)]
    assert asked == [min(step / 8, 1.0) for step in first]


def test_epoch_shift_goes_from_shallow_to_deep() -> None:
    sampler = samplers.Progressive(samplers.epoch_shift(3.0))
    cutoffs = [drawn[0] for drawn in train(200, sampler=sampler, total_steps=200)[1:]]
    assert np.mean(cutoffs[:50]) < 0.5
    assert np.mean(cutoffs[-50:]) > LAYERS - 1.5


def test_the_first_step_is_full_unless_it_is_not_wanted() -> None:
    sampler = samplers.Serial()
    assert train(1, sampler=sampler) == [(0, 1, 2, 3)]
    found = train(8, sampler=sampler, full_start=False)
    assert found == [Draws(sampler, full_start=False).at(k, LAYERS) for k in range(8)]
    assert all(len(drawn) == 1 for drawn in found)


def test_without_a_full_start_a_layer_starts_when_it_is_first_drawn() -> None:
    model = small_model()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), full_start=False)
    started: set[int] = set()
    for _ in range(12):
        (layer,) = optimizer.active
        backward(model)
        gradient = model[layer].weight.grad.clone()
        optimizer.step()
        if layer not in started:
            assert torch.equal(optimizer.state[model[layer].weight]["momentum_buffer"], gradient)
        started.add(layer)
        for i in range(LAYERS):
            assert bool(optimizer.state.get(model[i].get_parameter("weight"))) == (i in started)
        optimizer.zero_grad()
    assert started == set(range(LAYERS))


def test_layers_that_a_user_froze_never_move_alone() -> None:
    model = small_model()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), seed=4)
    active_sets(optimizer, model, 1)
    with optimizer.full():
        model[1].requires_grad_(False)
    found = active_sets(optimizer, model, 30)[1:]
    assert (1,) not in found
    assert set(found) == {(0,), (1, 3), (2,), (3,)}
