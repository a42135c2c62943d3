"""A small problem, and loops that accumulate gradients over the parts of its batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon

LAYERS = 4
EXAMPLES = 24


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    widths = [5, 6, 6, 6, 3]
    layers: list[nn.Module] = []
    for inside, outside in pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


def make_batch(k: int, examples: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(examples, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (examples,), generator=generator)


def accumulate(model: nn.Module, optimizer: DropMuon, k: int, parts: int) -> None:
    """A loop that accumulates gradients and knows nothing of parts."""
    x, y = make_batch(k)
    for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (F.cross_entropy(model(some), labels) / parts).backward()


def train(model: nn.Module, optimizer: DropMuon, steps: int, first: int = 0) -> list[Any]:
    """Steps of an accumulating loop; the sets of each."""
    seen = []
    for k in range(first, first + steps):
        sets = []
        x, y = make_batch(k)
        m = optimizer.parts
        for some, labels in zip(x.chunk(m), y.chunk(m), strict=True):
            sets.append(optimizer.active)
            (F.cross_entropy(model(some), labels) / m).backward()
        seen.append(sets)
        optimizer.step()
        optimizer.zero_grad()
    return seen


def point(model: nn.Module) -> list[list[Tensor]]:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [[layer.weight.detach(), layer.bias.detach()] for layer in layers]


def gradient_of_part(parts: int) -> Any:
    """The gradient of part p of batch k, at any point, of a private model."""
    private = make_model()

    def gradient(X: list[list[Tensor]], k: int, p: int) -> list[list[Tensor]]:
        names = [name for name, _ in private.named_parameters()]
        flat = [x.clone().requires_grad_() for layer in X for x in layer]
        x, y = (each.chunk(parts)[p] for each in make_batch(k))
        out = torch.func.functional_call(private, dict(zip(names, flat, strict=True)), (x,))
        found = iter(torch.autograd.grad(F.cross_entropy(out, y), flat))
        return [[next(found) for _ in layer] for layer in X]

    return gradient
