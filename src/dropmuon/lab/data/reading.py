"""From the bytes of known files to arrays of pixels and labels."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Pictures", "cifar", "idx", "mini"]

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images (N, C, H, W) and their labels (N,), as bytes; of the training set and of the test."""

    train: Pixels
    train_labels: Pixels
    test: Pixels
    test_labels: Pixels


def idx(files: Mapping[str, bytes]) -> Pictures:
    """The four files of MNIST: a header of big-endian numbers, then one byte per value."""

    def images(name: str) -> Pixels:
        content = files[f"{name}-images-idx3-ubyte"]
        count, height, width = np.frombuffer(content, ">i4", count=3, offset=4)
        return np.frombuffer(content, np.uint8, offset=16).reshape(count, 1, height, width)

    def labels(name: str) -> Pixels:
        return np.frombuffer(files[f"{name}-labels-idx1-ubyte"], np.uint8, offset=8)

    return Pictures(images("train"), labels("train"), images("t10k"), labels("t10k"))


def cifar(files: Mapping[str, bytes]) -> Pictures:
    """The binary batches of CIFAR-10: a label, then three planes of 32x32, per image."""

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


def mini(archive: bytes) -> Pictures:
    """The embedded archive: images (N, 28, 28) and labels."""
    with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
        return Pictures(
            arrays["train_images"][:, None],
            arrays["train_labels"],
            arrays["test_images"][:, None],
            arrays["test_labels"],
        )
