"""A multi-layer perceptron."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

__all__ = ["mlp"]


def mlp(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make layers hidden1, hidden2, ... of these widths, and head."""
    items: OrderedDict[str, nn.Module] = OrderedDict()
    items["flat"] = nn.Flatten()
    for place, (inside, outside) in enumerate(pairwise([math.prod(shape), *channels]), 1):
        between = [nn.BatchNorm1d(outside)] if batch_norm else []
        items[f"hidden{place}"] = nn.Sequential(nn.Linear(inside, outside), *between, nn.ReLU())
    items["head"] = nn.Linear(channels[-1], num_classes)
    return nn.Sequential(items)
