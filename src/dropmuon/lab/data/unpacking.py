"""From what was downloaded to the files that are kept.

An unpacker takes the download, the files that are wanted and the directory they go to. It reads
the members it knows by name and extracts nothing else.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from dropmuon.lab.data.checksums import File

__all__ = ["Unpacker", "as_is", "gunzip", "members", "untar", "unzip"]

Unpacker = Callable[[Path, Sequence[File], Path], None]


def as_is(download: Path, wanted: Sequence[File], into: Path) -> None:
    """The download is the file."""
    with download.open("rb") as stream:
        _keep(stream, wanted[0], into)


def gunzip(download: Path, wanted: Sequence[File], into: Path) -> None:
    """The download is the file, compressed."""
    with gzip.open(download) as stream:
        _keep(stream, wanted[0], into)


def untar(download: Path, wanted: Sequence[File], into: Path) -> None:
    """The files are members of a tar archive, in whatever folder."""
    by_name = {file.name: file for file in wanted}
    for name, stream in members(download):
        if name in by_name:
            _keep(stream, by_name[name], into)


def unzip(download: Path, wanted: Sequence[File], into: Path) -> None:
    """The files are members of a zip archive (a wheel is one), in whatever folder."""
    by_name = {file.name: file for file in wanted}
    with zipfile.ZipFile(download) as archive:
        for path in archive.namelist():
            if Path(path).name in by_name:
                with archive.open(path) as stream:
                    _keep(stream, by_name[Path(path).name], into)


def members(download: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The regular files of a tar archive in its order: names without folders, and contents."""
    with tarfile.open(download) as archive:
        for each in archive:
            stream = archive.extractfile(each) if each.isfile() else None
            if stream is not None:
                yield Path(each.name).name, stream


def _keep(stream: IO[bytes] | gzip.GzipFile, file: File, into: Path) -> None:
    """Write the file; one byte too many is enough to know that it is wrong."""
    (into / file.name).write_bytes(stream.read(file.size + 1))
