"""A small language model whose table is also its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dropmuon import DropMuon

TOKENS = torch.tensor([[0, 3, 1, 4], [2, 2, 5, 0]])


class Tied(nn.Module):
    """A small language model with one table, looked up once or twice, and used as the head."""

    def __init__(self, *, twice: bool = False, sparse: bool = False, saving: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 8, sparse=sparse)
        self.again = nn.Embedding(6, 8) if twice else None
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 6, bias=False)
        self.head.weight = self.table.weight
        if self.again is not None:
            self.again.weight = self.table.weight
        self.saving = saving

    def forward(self, tokens: Tensor) -> Tensor:
        x = self._look_up(tokens)
        for number, block in enumerate(self.blocks):
            x = x + torch.tanh(block(x))
            if self.again is not None and number == 1:
                x = x + self.again(tokens)
        found: Tensor = self.head(x)
        return found

    def _look_up(self, tokens: Tensor) -> Tensor:
        if self.saving:
            return checkpoint(self.table, tokens, use_reentrant=False)
        return self.table(tokens)


def tied(**options: Any) -> Tied:
    torch.manual_seed(0)
    return Tied(**options).double()


def loss(model: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    found: Tensor = model(tokens)
    return nn.functional.cross_entropy(found.flatten(0, 1), tokens.flatten())


def step(model: nn.Module, optimizer: DropMuon) -> None:
    loss(model).backward()
    optimizer.step()
    optimizer.zero_grad()


def gradient(model: Tied) -> Tensor:
    """Return the gradient of the tied weight, and clear all gradients."""
    model.zero_grad()
    loss(model).backward()
    found = model.table.weight.grad
    assert found is not None
    model.zero_grad()
    return found


def of_the_head(model: Tied) -> Tensor:
    """Return the part of the gradient that comes from the head, without the library's help."""
    other = tied()
    other.load_state_dict(model.state_dict())
    other.table.weight = nn.Parameter(other.table.weight.detach().clone(), requires_grad=False)
    loss(other).backward()
    assert other.head.weight.grad is not None
    return other.head.weight.grad


def hooks(model: nn.Module) -> int:
    found = (module._forward_hooks.values() for module in model.modules())
    return sum(type(hook).__name__ == "_Gate" for own in found for hook in own)


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))
