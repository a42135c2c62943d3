"""One method on one seed: its steps, its data, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.train.equal_terms import initial_model, measured_budget
from dropmuon.lab.train.meter import train_step
from dropmuon.lab.train.trial import Trial
from tests.lab.tiny import tiny


def trial_of(config: Config, method: str, seed: int = 0) -> Trial:
    """A trial that has not begun."""
    found = data.load(config.dataset)
    initial = initial_model(config, found, 0)
    return Trial(
        config, config.method(method), seed, found, initial, measured_budget(config, found)
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("drop-muon:uniform", {}),
        ("drop-muon:uniform", {"updates_per_batch": 2}),
        ("drop-muon:nice-2", {"parts": 3}),
        ("drop-muon:parts-4", {}),
        ("drop-muon:parts-4:uniform", {"turns": 2}),
        ("drop-muon:turns-3", {"updates_per_batch": 2}),
        ("full", {"parts": 2, "batch_size": 333}),
        ("torch-muon", {}),
        ("adamw", {}),
    ],
)
def test_operations_are_those_of_the_steps_that_were_taken(
    method: str, options: dict[str, Any]
) -> None:
    config = tiny(methods=(method,), options={method: options})
    trial, twin = trial_of(config, method), trial_of(config, method)
    trial.advance(1.0)
    counted, updates = 0, twin.method.updates_per_batch
    for step in range(trial.step):
        with FlopCounterMode(display=False) as counter:
            train_step(twin.model, twin.optimizer, twin.feed.batch(step), updates)
        counted += counter.get_total_flops()
    assert trial.operations == counted
    assert trial.step >= 8


def test_counting_leaves_the_trained_model_and_the_generator_alone() -> None:
    config = tiny(dataset="fashion-mini", model="cnn", channels=(2, 2), batch_norm=True)
    found = data.load("fashion-mini")
    initial = initial_model(config, found, 0)
    before = {k: v.clone() for k, v in initial.state_dict().items()}
    state = torch.get_rng_state()
    trial = Trial(config, config.method("full"), 0, found, initial, measured_budget(config, found))
    trial.advance(1e-6)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in initial.state_dict().items())
    assert int(trial.model.get_buffer("conv1.1.num_batches_tracked")) == trial.step == 1


def test_every_epoch_has_each_example_once_in_an_order_of_its_own_that_methods_share() -> None:
    config, train = tiny(), data.load("digits").train
    orders = {}
    for method, seed in (("full", 0), ("adamw", 0), ("full", 3)):
        feed = trial_of(config, method, seed).feed
        targets = torch.cat([feed.batch(step)[1] for step in range(8)])
        orders[method, seed] = targets.split(len(train))
    for epochs in orders.values():
        for epoch in epochs:
            assert torch.equal(epoch.sort()[0], train.targets.sort()[0])
        assert not torch.equal(*epochs)
    for mine, other in zip(orders["full", 0], orders["adamw", 0], strict=True):
        assert torch.equal(mine, other)
    assert not torch.equal(orders["full", 0][0], orders["full", 3][0])


def test_augmentation_is_a_function_of_seed_and_step() -> None:
    config = tiny(dataset="fashion-mini", model="mlp", channels=(4,), augment=True)
    first, second = (trial_of(config, "full").feed for _ in range(2))
    torch.testing.assert_close(first.batch(1)[0], second.batch(1)[0], rtol=0, atol=0)
    plain = trial_of(replace(config, augment=False), "full").feed
    assert not torch.equal(first.batch(0)[0], plain.batch(0)[0])


def test_a_last_batch_too_small_for_its_parts_is_left_out() -> None:
    config = tiny(methods=("full", "drop-muon:parts-4"), batch_size=715)  # 1437 = 2 * 715 + 7
    whole, parted = (trial_of(config, name).feed.epochs for name in config.methods)
    assert (whole.steps, whole.size_at(2)) == (3, 7)
    assert (parted.steps, parted.size_at(2)) == (2, 715)
