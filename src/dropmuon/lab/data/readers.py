"""What the files of a data set hold, as arrays: pixels and labels, or text.

A reader is called with the contents of the files, by name. Checksums have been verified by then, so
a reader trusts what it reads.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Pictures", "Pixels", "Reader", "cifar", "digits", "idx", "npz", "text"]

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
