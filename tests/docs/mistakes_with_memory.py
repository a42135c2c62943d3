"""What users may do wrong with a budget of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dropmuon import checkpoint_blocks

__all__ = ["MEMORY_MISUSES"]


class Block(nn.Module):
    """A block that may be given a cache, as those of transformers are."""

    gradient_checkpointing = False

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, past_key_values: Any = None) -> Tensor:
        found: Tensor = x + self.outer(torch.tanh(self.inner(x)))
        return found


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor, *, use_cache: bool = False) -> Tensor:
        for block in self.blocks:
            x = block(x, past_key_values={} if use_cache else None)
        return x


def with_a_cache() -> None:
    checkpoint_blocks(Blocks(), 100_000, {"x": torch.ones(512, 4), "use_cache": True})


def blocks_that_checkpoint() -> None:
    model = Blocks()
    vars(model.blocks[0])["gradient_checkpointing"] = True
    checkpoint_blocks(model, 200_000, torch.ones(512, 4))


def compiled_blocks() -> None:
    model = Blocks()
    model.blocks[0].compile(backend="eager")
    checkpoint_blocks(model, 200_000, torch.ones(512, 4))


def larger_batch() -> None:
    model = Blocks()
    checkpoint_blocks(model, 100_000, torch.ones(512, 4))
    model(torch.ones(513, 4))


MEMORY_MISUSES: list[tuple[str, type[Exception], str, Callable[[], Any]]] = [
    (
        "budget-not-whole",
        ValueError,
        "budget must be a whole number",
        lambda: checkpoint_blocks(Blocks(), 0.5, torch.ones(512, 4)),  # type: ignore[arg-type]
    ),
    (
        "budget-too-small",
        ValueError,
        "budget must be at least [0-9]+ bytes",
        lambda: checkpoint_blocks(Blocks(), 1000, torch.ones(512, 4)),
    ),
    ("checkpoints-with-a-cache", ValueError, "use_cache=False", with_a_cache),
    ("checkpoints-twice", ValueError, "already checkpoints its blocks", blocks_that_checkpoint),
    ("checkpoints-of-compiled-blocks", ValueError, "model has compiled blocks", compiled_blocks),
    ("larger-than-the-example", UserWarning, "so the budget may not hold", larger_batch),
]
