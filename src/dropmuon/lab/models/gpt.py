"""A small GPT on bytes: pre-norm blocks of causal attention and a perceptron."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["gpt"]

_HEAD_WIDTH = 32


def gpt(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make layers embedding, block1, ..., and head; `channels` repeats one width per block."""
    width = channels[0]
    if set(channels) != {width} or width % _HEAD_WIDTH:
        raise ValueError(
            f"channels must repeat one width, a multiple of {_HEAD_WIDTH}, once per block for gpt, "
            f"got {tuple(channels)}; for example 128,128,128,128"
        )
    if batch_norm:
        raise ValueError("batch_norm must be off for gpt, got True; its blocks have layer norms")
    items: OrderedDict[str, nn.Module] = OrderedDict()
    items["embedding"] = _Embedding(num_classes, shape[0], width)
    for place in range(1, len(channels) + 1):
        items[f"block{place}"] = _Block(width)
    items["head"] = nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, num_classes, bias=False), _ClassesSecond()
    )
    return nn.Sequential(items)


class _Embedding(nn.Module):
    """The sum of the embeddings of a byte and of its position."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(context, width)
        for table in (self.byte, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (batch, context, width)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        found: Tensor = self.byte(tokens) + self.place(places)
        return found


class _Block(nn.Module):
    """A block: x + attention(norm(x)), then x + perceptron(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape."""
        x = x + self._attend(self.norm1(x))
        found: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return found

    def _attend(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        heads = self.mix(x).view(batch, context, 3, width // _HEAD_WIDTH, _HEAD_WIDTH)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(found.transpose(1, 2).reshape(batch, context, width))
        return mixed


class _ClassesSecond(nn.Module):
    """A view of (batch, context, classes) as (batch, classes, context), for cross entropy."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a view."""
        return x.transpose(1, 2)
