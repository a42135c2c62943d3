"""From bytes to tensors on the device."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dropmuon.lab.data.examples import Data, Examples
from dropmuon.lab.data.reading import Pictures

__all__ = ["images", "text"]


def images(name: str, pictures: Pictures, device: torch.device) -> Data:
    """Pictures as float32, normalised by the training set's mean and deviation per channel."""
    mean, deviation = _moments(pictures.train)

    def examples(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Examples:
        inputs = torch.tensor(pixels, device=device).float()
        inputs.sub_(mean.to(device)).div_(deviation.to(device))
        return Examples(inputs, torch.tensor(labels, device=device).long())

    train = examples(pictures.train, pictures.train_labels)
    test = examples(pictures.test, pictures.test_labels)
    classes = int(pictures.train_labels.max()) + 1
    return Data(name, "images", train, test, classes, tuple(train.inputs.shape[1:]))


def text(name: str, content: bytes, context: int, device: torch.device) -> Data:
    """The first nine tenths to train on, the rest to test on, each cut into windows of bytes."""
    stream = torch.tensor(np.frombuffer(content, np.uint8), device=device).long()
    cut = len(stream) * 9 // 10
    longest = min(cut, len(stream) - cut) - 1
    if context > longest:
        raise ValueError(f"context must be at most {longest}, all of the test text, got {context}")
    train, test = (_windows(part, context) for part in (stream[:cut], stream[cut:]))
    return Data(name, "bytes", train, test, 256, (context,))


def _moments(pixels: npt.NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel, (C, 1, 1), from exact sums: the same on every machine."""
    rows = []
    for channel in range(pixels.shape[1]):
        plane = pixels[:, channel]
        mean = int(plane.sum(dtype=np.int64)) / plane.size
        square = int(np.square(plane, dtype=np.uint16).sum(dtype=np.int64)) / plane.size
        rows.append((mean, math.sqrt(square - mean**2)))
    mean_and_deviation = torch.tensor(rows)[:, :, None, None]
    return mean_and_deviation[:, 0], mean_and_deviation[:, 1]


def _windows(stream: Tensor, context: int) -> Examples:
    """Windows side by side; the target of each byte is the next one."""
    count = (len(stream) - 1) // context
    inputs, targets = stream[: count * context], stream[1 : count * context + 1]
    return Examples(inputs.view(count, context), targets.view(count, context))
