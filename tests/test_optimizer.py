"""What loops in the wild do around a step."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, samplers


def chain(depth: int = 3, width: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


def learn(optimizer: DropMuon, loss: Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_step_inside_autocast_is_the_step_outside_of_it() -> None:
    inside, outside = chain(), chain()
    ours, theirs = DropMuon(inside, lr=0.1), DropMuon(outside, lr=0.1)
    x = torch.ones(2, 6)
    for _ in range(4):
        for model in (inside, outside):
            model(x).square().mean().backward()
        with torch.autocast("cpu", torch.bfloat16):
            ours.step()
        theirs.step()
        ours.zero_grad()
        theirs.zero_grad()
    for a, b in zip(inside.parameters(), outside.parameters(), strict=True):
        assert torch.equal(a, b)


class Experts(nn.Module):
    """A shared expert and one of the others per batch, between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, which: int) -> Tensor:
        h = self.stem(x)
        mixed = self.experts[0](h) + (self.experts[which](h) if which else 0)
        out: Tensor = self.head(mixed.relu())
        return out


def test_experts_that_were_idle_in_the_first_step_are_trained_later() -> None:
    torch.manual_seed(0)
    model = Experts()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), seed=3)
    before = [expert.weight.clone() for expert in model.experts]
    with pytest.warns(UserWarning, match="no gradient reached 'experts.1', 'experts.2'"):
        learn(optimizer, model(torch.randn(8, 4), 0).square().mean())
    for step in range(60):
        learn(optimizer, model(torch.randn(8, 4), 1 + step % 2).square().mean())
    for expert, start in zip(list(model.experts)[1:], before[1:], strict=True):
        assert not torch.equal(expert.get_parameter("weight"), start)


def test_a_model_frozen_as_a_whole_stays_so_when_its_optimizer_is_gone() -> None:
    model = chain()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    learn(optimizer, model(torch.ones(2, 6)).square().mean())
    model.requires_grad_(False)
    del optimizer
    gc.collect()
    assert not any(p.requires_grad for p in model.parameters())


def test_an_old_optimizer_that_goes_leaves_the_flags_of_a_newer_one() -> None:
    model = chain()
    old = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    learn(old, model(torch.ones(2, 6)).square().mean())
    new = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    with new.full():
        model[0].requires_grad_(False)
    learn(new, model(torch.ones(2, 6)).square().mean())
    flags = [p.requires_grad for p in model.parameters()]
    del old
    gc.collect()
    assert [p.requires_grad for p in model.parameters()] == flags
    assert not model[0].weight.requires_grad


def test_a_value_deep_in_a_frozen_prefix_can_be_read() -> None:
    model = chain(depth=400, width=2)

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Tensor) -> Tensor:
            for n, layer in enumerate(self.layers):
                x = torch.tanh(layer(x))
                if n == 390:
                    self.seen = x.detach()
            return x

    outer = Cached()
    optimizer = DropMuon(outer, lr=0.01, sampler=samplers.Serial(), updates_per_batch=2)
    x = torch.ones(1, 2)

    def closure() -> None:
        optimizer.zero_grad()
        outer(x).sum().backward()

    optimizer.step(closure)
    optimizer.activate((399,))
    optimizer.step(closure)
    assert type(outer.seen) is Tensor
    kept = outer.seen
    outer(x)
    assert torch.equal(outer.seen, kept)


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: dict[str, Any] = {
        "lr": np.float32(0.5),
        "total_steps": np.int64(10),
        "momentum": np.float64(0.25),
    }
    optimizer = DropMuon(chain(), **numbers)
    assert optimizer.param_groups[0]["lr"] == 0.5
