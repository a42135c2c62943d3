"""What a model learns from: inputs and targets as one tensor each, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dropmuon.checks import whole_number
from dropmuon.lab.data.cache import cache_directory, contents, is_missing
from dropmuon.lab.data.cache import fetch as fetch_files
from dropmuon.lab.data.catalogue import check_classes, find
from dropmuon.lab.data.readers import Pictures, Pixels

__all__ = ["Data", "Examples", "augment", "from_pictures", "from_text", "load", "of_classes"]


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
        """Return the inputs and targets at these positions."""
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)

    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples on another device."""
        return Examples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Data:
    """A data set that is ready to train on.

    Attributes:
        name: as in `dropmuon.lab.data.NAMES`.
        kind: "images" or "bytes".
        train: the training set.
        test: the test set.
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
        """Return the same data on another device."""
        train, test = self.train.to(device), self.test.to(device)
        return Data(self.name, self.kind, train, test, self.num_classes, self.shape)


def load(
    name: str,
    *,
    cache: Path | str | None = None,
    device: torch.device | str = "cpu",
    context: int = 64,
    classes: Sequence[int] = (),
    fetch: bool = True,
    show_progress: bool = False,
) -> Data:
    """Load a data set onto a device; each of its files must have the right checksum.

    Args:
        name: one of `NAMES`.
        cache: directory of fetched files; by default `$DROPMUON_DATA`, or else the platform's
            cache directory.
        device: where the tensors live.
        context: bytes per example, for text.
        classes: of images, those to keep, relabelled 0, 1, ... in this order; all by default.
        fetch: whether to fetch missing files; if not, they are an error.
        show_progress: whether to show progress bars while fetching.
    """
    chosen = find(name)
    place = _usable(device)
    folder = cache_directory(cache)
    whole_number("context", context)
    check_classes(name, classes)
    if is_missing(chosen, folder):
        if not fetch:
            raise FileNotFoundError(
                f"{name} is not in the cache directory {folder}; run: dropmuon data fetch {name}"
            )
        fetch_files(name, folder, show_progress)
    content = chosen.read(contents(chosen, folder))
    if isinstance(content, Pictures):
        found = from_pictures(name, content, place)
        return of_classes(found, classes) if classes else found
    return from_text(name, content, context, place)


def from_pictures(name: str, pictures: Pictures, device: torch.device) -> Data:
    """Make float32 images, normalised by the training set's mean and deviation per channel."""
    mean, deviation = _moments(pictures.train)

    def examples(pixels: Pixels, labels: Pixels) -> Examples:
        inputs = torch.tensor(pixels, device=device).float()
        inputs.sub_(mean.to(device)).div_(deviation.to(device))
        return Examples(inputs, torch.tensor(labels, device=device).long())

    train = examples(pictures.train, pictures.train_labels)
    test = examples(pictures.test, pictures.test_labels)
    classes = int(pictures.train_labels.max()) + 1
    return Data(name, "images", train, test, classes, tuple(train.inputs.shape[1:]))


def of_classes(found: Data, classes: Sequence[int]) -> Data:
    """Return the images of these classes alone, relabelled 0, 1, ... in the order given.

    Images stay normalised as those of the whole set, so that a model that was trained on some
    classes gets others in the same form.
    """
    unknown = next((each for each in classes if each >= found.num_classes), None)
    if unknown is not None:
        raise ValueError(
            f"classes must be from 0 to {found.num_classes - 1} for {found.name}, got {unknown}; "
            "count classes from 0"
        )
    chosen = torch.tensor(classes, device=found.train.targets.device)

    def part(examples: Examples) -> Examples:
        matches = examples.targets[:, None] == chosen
        index = matches.any(1).nonzero()[:, 0]
        return Examples(examples.inputs[index], matches[index].long().argmax(1))

    train, test = part(found.train), part(found.test)
    return Data(found.name, found.kind, train, test, len(classes), found.shape)


def from_text(name: str, content: bytes, context: int, device: torch.device) -> Data:
    """Cut text into windows of bytes: its first nine tenths to train on, the rest to test on."""
    stream = torch.tensor(np.frombuffer(content, np.uint8), device=device).long()
    cut = len(stream) * 9 // 10
    longest = min(cut, len(stream) - cut) - 1
    if context > longest:
        raise ValueError(
            f"context must be at most {longest}, all of the test text, got {context}; lower it"
        )
    train, test = (_windows(part, context) for part in (stream[:cut], stream[cut:]))
    return Data(name, "bytes", train, test, 256, (context,))


def augment(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image at random, filling the border by reflection; mirror half the colour images.

    Images of 32 pixels are shifted by up to 4 pixels, of 28 by up to 2, of 8 by 1. What is drawn
    depends on the generator alone, not on the device of the (N, C, H, W) inputs.
    """
    if inputs.ndim != 4:
        raise ValueError(
            f"inputs must be images of shape (N, C, H, W), got {tuple(inputs.shape)}; "
            "train on bytes without augmentation"
        )
    count, channels, height, width = inputs.shape
    rows = _shifted(count, height, generator)
    columns = _shifted(count, width, generator)
    if channels == 3:
        mirrored = _drawn(2, count, generator).bool()
        columns = torch.where(mirrored, width - 1 - columns, columns)
    rows, columns = rows.to(inputs.device), columns.to(inputs.device)
    images = torch.arange(count, device=inputs.device)[:, None, None, None]
    planes = torch.arange(channels, device=inputs.device)[:, None, None]
    return inputs[images, planes, rows[:, None, :, None], columns[:, None, None, :]]


def _moments(pixels: Pixels) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel, (C, 1, 1), from exact sums: the same everywhere."""
    rows = []
    for channel in range(pixels.shape[1]):
        plane = pixels[:, channel]
        mean = int(plane.sum(dtype=np.int64)) / plane.size
        square = int(np.square(plane, dtype=np.uint16).sum(dtype=np.int64)) / plane.size
        rows.append((mean, math.sqrt(square - mean**2)))
    mean_and_deviation = torch.tensor(rows)[:, :, None, None]
    return mean_and_deviation[:, 0], mean_and_deviation[:, 1]


def _windows(stream: Tensor, context: int) -> Examples:
    """Cut a stream into adjacent windows; the target of each byte is the next one."""
    count = (len(stream) - 1) // context
    inputs, targets = stream[: count * context], stream[1 : count * context + 1]
    return Examples(inputs.view(count, context), targets.view(count, context))


def _shifted(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Return, for each image, the source of each of its rows: (count, side)."""
    reach = min(_reach(side), side - 1)
    shift = _drawn(2 * reach + 1, count, generator) - reach
    place = torch.arange(side, device=generator.device) + shift
    return (side - 1) - ((side - 1) - place.abs()).abs()


def _reach(side: int) -> int:
    if side >= 32:
        return 4
    return 2 if side >= 16 else 1


def _drawn(below: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(below, (count, 1), generator=generator, device=generator.device)


def _usable(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be one that torch can use here, got {str(device)!r}: {reason}"
        ) from error
