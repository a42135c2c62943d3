"""What a model learns from: one tensor of inputs, one of targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Data", "Examples"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and their targets, all on one device.

    Attributes:
        inputs: (N, C, H, W) float32, normalised by the training set's mean and deviation per
            channel; or (N, context) int64 bytes.
        targets: (N,) classes, or (N, context) the byte after each input byte; int64.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at these positions."""
        return self.inputs[index], self.targets[index]

    def to(self, device: torch.device | str) -> Examples:
        """The same examples on another device."""
        return Examples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, ready to train on.

    Attributes:
        name: as in `dropmuon.lab.data.NAMES`.
        kind: "images" or "bytes".
        train: what is learned from.
        test: what is not.
        num_classes: of targets; 256 for bytes.
        shape: of one input: (C, H, W), or (context,).
    """

    name: str
    kind: Literal["images", "bytes"]
    train: Examples
    test: Examples
    num_classes: int
    shape: tuple[int, ...]

    def to(self, device: torch.device | str) -> Data:
        """The same data on another device."""
        train, test = self.train.to(device), self.test.to(device)
        return Data(self.name, self.kind, train, test, self.num_classes, self.shape)
