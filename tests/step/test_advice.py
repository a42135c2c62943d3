"""Active layers that a checkpoint leaves without gradients are told, once, with the remedy."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dropmuon import DropMuon


class Stack(nn.Module):
    """Three checkpointed blocks between a stem and a head."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        found: Tensor = self.head(x)
        return found


class Experts(nn.Module):
    """Two maps and a head; each map sees an input in some steps only, the head in all."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.chosen = "both"

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x) if self.chosen in ("both", "one") else 0.0
        two = self.two(x) if self.chosen in ("both", "two") else 0.0
        found: Tensor = self.head(x + one + two)
        return found


def step(model: nn.Module, optimizer: DropMuon) -> None:
    for x in optimizer.split(torch.ones(4, 4)):
        model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def told(model: nn.Module, optimizer: DropMuon, steps: int) -> list[str]:
    """Take steps, and return the warnings that are ours."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            step(model, optimizer)
    messages = [str(each.message) for each in caught]
    return [each for each in messages if "None of the inputs have requires_grad" not in each]


@pytest.mark.parametrize("settings", [{}, {"parts": 2}, {"by": "block"}])
def test_reentrant_checkpointing_is_told_once(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Stack(reentrant=True)
    (message,) = told(model, DropMuon(model, **settings), 40)
    assert "'blocks." in message
    assert "pass use_reentrant=False" in message


@pytest.mark.parametrize("settings", [{}, {"parts": 2}, {"by": "block"}])
def test_other_checkpointing_is_not(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Stack(reentrant=False)
    assert told(model, DropMuon(model, **settings), 40) == []


def test_it_takes_several_backwards_in_a_row_without_a_gradient() -> None:
    model = Experts()
    optimizer = DropMuon(model)
    step(model, optimizer)
    for number in range(20):  # the lowest active layer misses three gradients of four
        model.chosen = "both" if number % 4 == 3 else "one"
        optimizer.activate([1, 2])
        assert told(model, optimizer, 1) == []
    model.chosen = "one"
    found = []
    for _ in range(4):
        optimizer.activate([1, 2])
        found += told(model, optimizer, 1)
    assert len(found) == 1
    assert "no gradient reached 'two', although active, in 4 truncated backwards" in found[0]


def test_a_layer_with_gradients_below_it_is_not_blamed() -> None:
    """It is skipped by the model, and not cut off by what is frozen."""
    experts = Experts()
    model = nn.Sequential(nn.Linear(4, 4), experts)
    optimizer = DropMuon(model)
    for number in range(10):
        experts.chosen = "one" if number else "both"
        if number:
            optimizer.activate([1, 2, 3])
        assert told(model, optimizer, 1) == []


def test_layers_that_never_had_a_gradient_or_are_frozen_are_not_blamed() -> None:
    model = Experts()
    optimizer = DropMuon(model)
    step(model, optimizer)
    with optimizer.full():
        model.two.requires_grad_(False)
    for _ in range(8):
        optimizer.activate([1, 2])
        assert told(model, optimizer, 1) == []
    model = Experts()
    model.chosen = "one"
    optimizer = DropMuon(model)
    with pytest.warns(UserWarning, match="no gradient reached 'two' in a full step"):
        step(model, optimizer)
    for _ in range(8):
        optimizer.activate([1, 2])
        assert told(model, optimizer, 1) == []
