"""The models of the lab: each a `Sequential` whose named items are the layers, in order.

To add a model, add a function that makes it, and an entry to `MODELS`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.checks import unknown_name, whole_number

__all__ = ["MODELS", "PAPER_CHANNELS", "Family", "build", "family_of", "head_of", "item_of"]

PAPER_CHANNELS = (
    (8, 16, 32),
    (16, 32, 64),
    (64, 128, 256),
    (128, 256, 512),
    (64, 16, 8),
    (256, 128, 64),
)
"""The channel configurations of the paper's 3-layer CNNs."""

Make = Callable[[tuple[int, ...], int, Sequence[int], bool], nn.Sequential]


@dataclass(frozen=True)
class Family:
    """How to make a model, what data it takes, and its usual widths and policy."""

    make: Make
    kind: str
    channels: tuple[int, ...]
    policy: str


def family_of(name: str) -> Family:
    """Return the family of this name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def build(
    name: str,
    shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int] | None = None,
    batch_norm: bool = False,
    join_head: bool = False,
) -> nn.Sequential:
    """Make a model for inputs of this shape, with random weights from PyTorch's generator.

    Args:
        name: cnn, mlp, resnet18 or gpt.
        shape: of one input, (C, H, W) for images and (context,) for bytes.
        num_classes: how many classes the model distinguishes.
        channels: widths in order; one per block for cnn, mlp and gpt, one per stage for resnet18.
        batch_norm: before each ReLU, in cnn and mlp; resnet18 always has it.
        join_head: make the head part of the last layer, instead of a layer of its own.
    """
    family = family_of(name)
    widths = tuple(channels or family.channels)
    for width in widths:
        whole_number("channels", width)
    model = family.make(shape, num_classes, widths, batch_norm)
    return _with_joined_head(model) if join_head else model


def head_of(model: nn.Sequential, join_head: bool = False) -> str:
    """Return the name of the module that makes predictions, the last one of a built model."""
    *_, (last, _) = model.named_children()
    return f"{last}.1" if join_head else last


def item_of(name: str, parameter: object = None) -> str:
    """Return the layer of a parameter, for `by=`: the item of the `Sequential` that holds it."""
    return name.partition(".")[0]


def _with_joined_head(model: nn.Sequential) -> nn.Sequential:
    *others, (last, block), (_, head) = model.named_children()
    return nn.Sequential(OrderedDict([*others, (last, nn.Sequential(block, head))]))


def _cnn(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make the paper's CNN: layers conv1, conv2, ... that halve the image, and head.

    Channels are last in memory: the faster format, in which forward passes also take less of a
    step. (`resnet18` keeps the other one: oneDNN's strided 1x1 convolutions of few channels write
    past their memory in this format, uxlfoundation/oneDNN#6035.)
    """
    colours, height, width = shape
    shrink = 2 ** len(channels)
    if min(height, width) < shrink:
        raise ValueError(
            f"channels must be at most {min(height, width).bit_length() - 1} for images of "
            f"{height}x{width}, got {len(channels)}; each layer halves the image"
        )
    items: OrderedDict[str, nn.Module] = OrderedDict()
    for place, (inside, outside) in enumerate(pairwise([colours, *channels]), 1):
        items[f"conv{place}"] = _cnn_block(inside, outside, batch_norm)
    features = channels[-1] * (height // shrink) * (width // shrink)
    items["head"] = nn.Sequential(nn.Flatten(), nn.Linear(features, num_classes))
    model = nn.Sequential(items)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _cnn_block(inside: int, outside: int, batch_norm: bool) -> nn.Sequential:
    between = [nn.BatchNorm2d(outside)] if batch_norm else []
    convolution = nn.Conv2d(inside, outside, 3, padding=1, bias=not batch_norm)
    return nn.Sequential(convolution, *between, _HalvingPool(), nn.ReLU())


class _HalvingPool(nn.Module):
    """The largest of 2x2 pixels; before a ReLU, which commutes with it, there is less to clamp.

    A frozen layer takes two maxima instead: the same values, faster on a CPU, but
    with another gradient where pixels are equal.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return images of half the height and width."""
        if images.requires_grad or images.device.type != "cpu":
            return F.max_pool2d(images, 2)
        height, width = (size // 2 * 2 for size in images.shape[-2:])
        rows = torch.maximum(images[..., :height:2, :width], images[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _mlp(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make a perceptron: layers hidden1, hidden2, ... of these widths, and head."""
    items: OrderedDict[str, nn.Module] = OrderedDict()
    items["flat"] = nn.Flatten()
    for place, (inside, outside) in enumerate(pairwise([math.prod(shape), *channels]), 1):
        between = [nn.BatchNorm1d(outside)] if batch_norm else []
        items[f"hidden{place}"] = nn.Sequential(nn.Linear(inside, outside), *between, nn.ReLU())
    items["head"] = nn.Linear(channels[-1], num_classes)
    return nn.Sequential(items)


def _resnet18(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make ResNet-18 (He et al., 2016) for small images, with a 3x3 stem and no pooling after it.

    Its layers are stem, block1, ..., block8 and head; batch norm is part of the architecture.
    """
    if len(channels) != 4:
        raise ValueError(f"channels must be four stage widths for resnet18, got {len(channels)}")
    items: OrderedDict[str, nn.Module] = OrderedDict()
    items["stem"] = nn.Sequential(
        nn.Conv2d(shape[0], channels[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(channels[0]),
        nn.ReLU(),
    )
    inside = channels[0]
    for stage, outside in enumerate(channels):
        for half in range(2):
            stride = 2 if stage > 0 and half == 0 else 1
            items[f"block{2 * stage + half + 1}"] = _ResidualBlock(inside, outside, stride)
            inside = outside
    pool = nn.AdaptiveAvgPool2d(1)
    items["head"] = nn.Sequential(pool, nn.Flatten(), nn.Linear(inside, num_classes))
    return nn.Sequential(items)


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a skip connection, through a 1x1 where sizes change."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.carry: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.carry = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return ReLU of the skip connection plus the two convolutions."""
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.carry(x) + self.norm2(self.conv2(inner)))


_HEAD_WIDTH = 32


def _gpt(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make a small GPT on bytes, of pre-norm blocks.

    Its layers are embedding, block1, ..., and head; `channels` repeats one width per block.
    """
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
        items[f"block{place}"] = _AttentionBlock(width)
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


class _AttentionBlock(nn.Module):
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


MODELS = {
    "cnn": Family(_cnn, "images", (8, 16, 32), "spectral"),
    "mlp": Family(_mlp, "images", (512, 512, 512), "spectral"),
    "resnet18": Family(_resnet18, "images", (64, 128, 256, 512), "spectral"),
    "gpt": Family(_gpt, "bytes", (128, 128, 128, 128), "muon"),
}
