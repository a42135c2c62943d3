"""ResNet-18 (He et al., 2016) for small images: a 3x3 stem without pooling, four stages of two."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["resnet18"]


def resnet18(
    shape: tuple[int, ...], num_classes: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Make layers stem, block1, ..., block8 and head; batch norm is part of the architecture."""
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
            items[f"block{2 * stage + half + 1}"] = _Block(inside, outside, stride)
            inside = outside
    pool = nn.AdaptiveAvgPool2d(1)
    items["head"] = nn.Sequential(pool, nn.Flatten(), nn.Linear(inside, num_classes))
    return nn.Sequential(items)


class _Block(nn.Module):
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
