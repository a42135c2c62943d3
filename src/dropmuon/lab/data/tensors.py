"""What a model learns from: inputs and targets as one tensor each, on the device.

A reader is called with the contents of a data set's files, by name, and returns arrays of pixels
and labels, or text. Checksums have been verified by then, so a reader trusts what it reads.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = [
    "Data",
    "Examples",
    "Pictures",
    "Reader",
    "augment",
    "cifar",
    "digits",
    "from_pictures",
    "from_text",
    "idx",
    "npz",
    "of_classes",
    "text",
]


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


Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images (N, C, H, W) and labels (N,) of the training set and of the test set, as bytes."""

    train: Pixels
    train_labels: Pixels
    test: Pixels
    test_labels: Pixels


Reader = Callable[[Mapping[str, bytes]], Pictures | bytes]
"""A function that returns pictures, or one long text as bytes."""


def idx(files: Mapping[str, bytes]) -> Pictures:
    """Read the four files of MNIST: a header of big-endian numbers, then one byte per value."""

    def images(name: str) -> Pixels:
        content = files[f"{name}-images-idx3-ubyte"]
        count, height, width = np.frombuffer(content, ">i4", count=3, offset=4)
        return np.frombuffer(content, np.uint8, offset=16).reshape(count, 1, height, width)

    def labels(name: str) -> Pixels:
        return np.frombuffer(files[f"{name}-labels-idx1-ubyte"], np.uint8, offset=8)

    return Pictures(images("train"), labels("train"), images("t10k"), labels("t10k"))


def cifar(files: Mapping[str, bytes]) -> Pictures:
    """Read the binary batches of CIFAR-10: per image a label, then three planes of 32x32."""

    def records(*names: str) -> Pixels:
        return np.frombuffer(b"".join(files[name] for name in names), np.uint8).reshape(-1, 3073)

    train = records(*(f"data_batch_{number}.bin" for number in range(1, 6)))
    test = records("test_batch.bin")
    return Pictures(
        train[:, 1:].reshape(-1, 3, 32, 32),
        train[:, 0],
        test[:, 1:].reshape(-1, 3, 32, 32),
        test[:, 0],
    )


def npz(files: Mapping[str, bytes]) -> Pictures:
    """Read one NumPy archive of grey images (N, H, W) and labels (N,)."""
    (archive,) = files.values()
    with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
        return Pictures(
            arrays["train_images"][:, None],
            arrays["train_labels"],
            arrays["test_images"][:, None],
            arrays["test_labels"],
        )


def digits(files: Mapping[str, bytes]) -> Pictures:
    """Read scikit-learn's 1,797 digits; the training set is always the same four fifths."""
    found = importlib.import_module("sklearn.datasets").load_digits()  # slow to import
    images, labels = found.images.astype(np.uint8)[:, None], found.target.astype(np.uint8)
    order = np.random.RandomState(0).permutation(len(images))
    train, test = np.split(order, [int(0.8 * len(images))])
    return Pictures(images[train], labels[train], images[test], labels[test])


def text(files: Mapping[str, bytes]) -> bytes:
    """Read one file of text."""
    (content,) = files.values()
    return content


def from_pictures(name: str, pictures: Pictures, device: torch.device) -> Data:
    """Make float32 images, normalised by the training set's mean and deviation per channel."""
    mean, deviation = _moments(pictures.train)

    def examples(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Examples:
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


def _moments(pixels: npt.NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
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
