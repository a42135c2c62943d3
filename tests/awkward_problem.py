"""A model, a loss and batches that are hard to leave as they were, and the state of a model."""

from __future__ import annotations

import pickle
import random

import numpy as np
import torch
from torch import Tensor, nn


def bits(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.detach().numpy().tobytes()


def state_of(model: nn.Module) -> list[object]:
    """Comparable with ==: bits of tensors, identities of objects, flags, modes, generators."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        [(n, id(t), bits(t), t.requires_grad, id(t.grad), bits(t.grad)) for n, t in tensors],
        [(n, sorted(map(str, vars(t).items()))) for n, t in tensors],
        [(n, m.training, sorted(vars(m))) for n, m in model.named_modules()],
        [len(m._forward_pre_hooks) for m in model.modules()],
        bits(torch.get_rng_state()),
        pickle.dumps(np.random.get_state()),
        random.getstate(),
    ]


def awkward() -> nn.Sequential:
    """Batch norm, dropout, a frozen layer, a gradient that is waiting, a module in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(5, 6),
            nn.BatchNorm1d(6),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(6, 6),
            nn.Dropout(0.3).eval(),
            nn.Linear(6, 3),
        )
    model[4].weight.requires_grad_(False)
    for parameter in model[0].parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    return model


def noisy_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss that draws from every generator."""
    scale = 1.0 + 0.0 * (random.random() + float(np.random.rand()))
    return model(batch).square().mean() * scale


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 5, generator=generator) for _ in range(3)]
