"""Training with several updates per batch, replayed or recomputed, and what a run leaves behind."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dropmuon import DropMuon
from tests.fixed_set import Always


@dataclass
class Outcome:
    """All that a run may leave behind."""

    tensors: dict
    losses: list
    random: torch.Tensor
    messages: list
    model: nn.Module
    optimizer: DropMuon


def train(make, sampler, recompute, *, steps=5, updates=3, wrap=lambda model: model, loss=None):
    """Run a problem; `make()` gives a model and the batch of step k, `loss` the loss of both."""
    torch.manual_seed(7)
    np.random.seed(7)
    model, make_batch = make()
    called = wrap(model)
    settings = {"lr": 0.02, "sampler": sampler, "policy": "euclidean", "seed": 2}
    optimizer = DropMuon(called, updates_per_batch=1 if recompute else updates, **settings)
    loss = loss or (lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            batch = make_batch(step)

            def closure(batch=batch):
                optimizer.zero_grad()
                value = loss(called, batch)
                value.backward()
                losses.append(value.detach().clone())
                return value

            if recompute:
                one_by_one(optimizer, closure, step, updates)
            else:
                returned = optimizer.step(closure)
                assert torch.equal(returned.detach(), losses[step * updates])
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"state.{name}.{key}"] = torch.as_tensor(value)
    messages = [str(each.message) for each in caught]
    return Outcome(tensors, losses, torch.get_rng_state(), messages, model, optimizer)


def one_by_one(optimizer, closure, step, updates):
    """Updates of one batch as steps of their own, with the same active set and random numbers."""
    active = optimizer.draws.at(step, len(optimizer.layers))
    random = torch.get_rng_state()
    for _ in range(updates):
        torch.set_rng_state(random)
        optimizer.activate(active)
        optimizer.step(closure)


def assert_equal(ours, theirs):
    assert ours.tensors.keys() == theirs.tensors.keys()
    for step, (mine, other) in enumerate(zip(ours.losses, theirs.losses, strict=True)):
        assert torch.equal(mine, other), f"loss of call {step}: {mine} and {other}"
    for name, value in ours.tensors.items():
        assert type(value) in (torch.Tensor, nn.Parameter), name
        assert torch.equal(value, theirs.tensors[name]), name
    assert torch.equal(ours.random, theirs.random)


def assert_exact(make, sampler, message=None, **options):
    """Replay and recomputation agree; what the replay says, it says once."""
    ours = train(make, sampler, recompute=False, **options)
    theirs = train(make, sampler, recompute=True, **options)
    assert_equal(ours, theirs)
    told = [m for m in ours.messages if m.startswith("updates_per_batch")]
    assert len(told) == len(set(told))
    if message is None:
        assert told == []
    else:
        assert len(told) == 1
        assert message in told[0]
    return ours


def regression(*shape, out=3):
    def make_batch(step):
        generator = torch.Generator().manual_seed(step)
        return torch.randn(shape, generator=generator), torch.randn(
            shape[0], out, generator=generator
        )

    return make_batch


def started(model, batch, active, updates, loss=None, **options):
    """An optimizer after its full step, and a closure for the next."""
    optimizer = DropMuon(
        model,
        lr=0.02,
        sampler=Always(active),
        updates_per_batch=updates,
        policy="euclidean",
        **options,
    )
    loss = loss or (lambda: F.mse_loss(model(batch[0]), batch[1]))

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    assert optimizer.active == active
    return optimizer, closure
