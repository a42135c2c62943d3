"""The paper's convolutional networks: a convolution, ReLU and pooling per layer, then a head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

__all__ = ["cnn"]


def cnn(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make layers conv1, conv2, ... of 3x3 convolutions that halve the image, and head."""
    colours, height, width = shape
    shrink = 2 ** len(channels)
    if min(height, width) < shrink:
        raise ValueError(
            f"channels must be at most {min(height, width).bit_length() - 1} for images of "
            f"{height}x{width}, got {len(channels)}; each layer halves the image"
        )
    items: OrderedDict[str, nn.Module] = OrderedDict()
    for place, (inside, outside) in enumerate(pairwise([colours, *channels]), 1):
        items[f"conv{place}"] = _block(inside, outside, batch_norm)
    features = channels[-1] * (height // shrink) * (width // shrink)
    items["head"] = nn.Sequential(nn.Flatten(), nn.Linear(features, num_classes))
    return nn.Sequential(items)


def _block(inside: int, outside: int, batch_norm: bool) -> nn.Sequential:
    between = [nn.BatchNorm2d(outside)] if batch_norm else []
    convolution = nn.Conv2d(inside, outside, 3, padding=1, bias=not batch_norm)
    return nn.Sequential(convolution, *between, nn.ReLU(), nn.MaxPool2d(2))
