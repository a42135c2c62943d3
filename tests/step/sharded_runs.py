"""Models that are sharded in several ways, trained beside a whole one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from dropmuon import DropMuon

__all__ = [
    "Net",
    "Way",
    "batch",
    "check_equal",
    "check_near",
    "check_trains_alike",
    "fsdp",
    "fsdp_tp",
    "hsdp",
    "make",
    "tp",
    "train",
    "whole",
]

VOCABULARY, EXAMPLES, CLASSES = 11, 8, 3


class Net(nn.Module):
    """Shapes that no number of ranks divides: an embedding, matrices, norms, a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.gelu(self.up(x)))
        return out


def make() -> Net:
    torch.manual_seed(0)
    return Net().double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (EXAMPLES,), generator=generator)
    return tokens, torch.randint(CLASSES, (EXAMPLES,), generator=generator)


# Ways to shard: each returns the number of ranks that have examples of their own, and this one's


def fsdp(model: Net, mesh: DeviceMesh | None = None) -> tuple[int, int]:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return distributed.get_world_size(), distributed.get_rank()


def hsdp(model: Net) -> tuple[int, int]:
    mesh = init_device_mesh(
        "cpu", (2, distributed.get_world_size() // 2), mesh_dim_names=("r", "s")
    )
    return fsdp(model, mesh)


def tp(model: Net, mesh: DeviceMesh | None = None) -> tuple[int, int]:
    mesh = mesh or init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return 1, 0


def fsdp_tp(model: Net) -> tuple[int, int]:
    mesh = init_device_mesh(
        "cpu", (distributed.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp")
    )
    tp(model, mesh["tp"])
    fsdp(model, mesh["dp"])
    return mesh["dp"].size(), mesh["dp"].get_local_rank()


Way = Callable[[Net], tuple[int, int]]


def train(
    model: nn.Module,
    optimizer: Any,
    steps: int,
    share: tuple[int, int] = (1, 0),
    first: int = 0,
) -> list[object]:
    """Train on this rank's share of every batch; return the active sets."""
    ranks, rank = share
    drawn: list[object] = []
    for step in range(first, first + steps):
        drawn.append(optimizer.active)
        x, y = batch(step)
        out = model(x.chunk(ranks)[rank])
        F.cross_entropy(out, y.chunk(ranks)[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return drawn


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def check_near(ours: Tensor, theirs: Tensor, note: str, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        ours.detach(), theirs.detach(), rtol=tolerance, atol=tolerance, msg=partial(_noted, note)
    )


def _noted(note: str, text: str) -> str:
    return f"{note}: {text}"


def check_equal(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-9) -> None:
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        check_near(whole(mine.detach()), other, name, tolerance)


def check_trains_alike(way: Way, steps: int = 20, **settings: Any) -> None:
    ours, theirs = make(), make()
    share = way(ours)
    drawn = train(ours, DropMuon(ours, **settings), steps, share)
    assert drawn == train(theirs, DropMuon(theirs, **settings), steps)
    assert len(set(drawn)) > 2
    check_equal(ours, theirs)
