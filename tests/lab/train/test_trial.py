"""One method on one seed: its steps, its data, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon
from dropmuon.lab import data
from dropmuon.lab.train.meter import train_step
from dropmuon.lab.train.trial import Trial, initial_model
from tests.lab.tiny import tiny


def test_operations_are_those_of_the_steps_that_were_taken() -> None:
    config, found = tiny(methods=("drop-muon:uniform",)), data.load("digits")
    trial = Trial(
        config, config.method("drop-muon:uniform"), 0, found, initial_model(config, found, 0)
    )
    twin = Trial(
        config, config.method("drop-muon:uniform"), 0, found, initial_model(config, found, 0)
    )
    trial.advance(6)
    counted = 0
    for batch in twin._batches(6):
        with FlopCounterMode(display=False) as counter:
            train_step(twin.model, twin.optimizer, batch)
        counted += counter.get_total_flops()
    assert isinstance(twin.optimizer, DropMuon)
    assert trial.operations == counted


def test_counting_leaves_the_trained_model_and_the_generator_alone() -> None:
    config = tiny(dataset="fashion-mini", model="cnn", channels=(2, 2), batch_norm=True)
    found = data.load("fashion-mini")
    initial = initial_model(config, found, 0)
    before = {k: v.clone() for k, v in initial.state_dict().items()}
    state = torch.get_rng_state()
    trial = Trial(config, config.method("full"), 0, found, initial)
    trial.advance(1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in initial.state_dict().items())
    assert int(trial.model.get_buffer("conv1.1.num_batches_tracked")) == 1


def test_every_epoch_has_each_example_once_in_an_order_of_its_own_that_methods_share() -> None:
    config, found = tiny(), data.load("digits")
    orders = {}
    for method, seed in (("full", 0), ("adamw", 0), ("full", 3)):
        trial = Trial(config, config.method(method), seed, found, initial_model(config, found, 0))
        targets = torch.cat([targets for _, targets in trial._batches(8)])
        orders[method, seed] = targets.split(len(found.train))
    for epochs in orders.values():
        for epoch in epochs:
            assert torch.equal(epoch.sort()[0], found.train.targets.sort()[0])
        assert not torch.equal(*epochs)
    for mine, other in zip(orders["full", 0], orders["adamw", 0], strict=True):
        assert torch.equal(mine, other)
    assert not torch.equal(orders["full", 0][0], orders["full", 3][0])


def test_augmentation_is_a_function_of_seed_and_step() -> None:
    config = tiny(dataset="fashion-mini", model="mlp", channels=(4,), augment=True)
    found = data.load("fashion-mini")
    initial = initial_model(config, found, 0)
    first, second = (Trial(config, config.method("full"), 0, found, initial) for _ in range(2))
    second.step = 1
    batches = list(first._batches(2))
    torch.testing.assert_close(batches[1][0], next(iter(second._batches(1)))[0], rtol=0, atol=0)
    plain = Trial(replace(config, augment=False), config.method("full"), 0, found, initial)
    assert not torch.equal(batches[0][0], next(iter(plain._batches(1)))[0])
