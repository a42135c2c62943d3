"""Where fetched files are kept, and whether they are still intact."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pooch

from dropmuon.lab.data.catalogue import CATALOGUE, NAMES, DataSet, find
from dropmuon.lab.data.unpack import File

__all__ = ["Check", "Status", "cache_directory", "contents", "is_missing", "status", "verify"]

_VARIABLE = "DROPMUON_DATA"


@dataclass(frozen=True)
class Status:
    """A data set, and whether it can be loaded.

    Attributes:
        name: of the set.
        about: a one-line description.
        licence: its licence.
        size: in bytes, as kept.
        state: "included" (needs no fetching), "cached", "incomplete" or "absent". This compares
            sizes only; `verify` compares checksums.
    """

    name: str
    about: str
    licence: str
    size: int
    state: Literal["included", "cached", "incomplete", "absent"]

    @property
    def ready(self) -> bool:
        """Whether it can be loaded without a network."""
        return self.state in {"included", "cached"}


@dataclass(frozen=True)
class Check:
    """A file of a data set, and whether it is intact.

    Attributes:
        name: of the set.
        file: its path.
        state: "ok", "missing" or "wrong".
        expected: the checksum it must have.
        found: the checksum it has; None if it is missing.
    """

    name: str
    file: Path
    state: Literal["ok", "missing", "wrong"]
    expected: str
    found: str | None


def cache_directory(cache: Path | str | None = None) -> Path:
    """Return the given directory, else `$DROPMUON_DATA`, else the platform's cache directory."""
    variable = os.environ.get(_VARIABLE)
    argument = "cache" if cache is not None else _VARIABLE
    path = Path(cache or variable or pooch.os_cache("dropmuon")).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"{argument} must be a directory, got {path}, which is a file")
    return path.absolute()


def status(cache: Path | str | None = None) -> list[Status]:
    """Return the status of every data set."""
    folder = cache_directory(cache)
    return [
        Status(each.name, each.about, each.licence, each.size, _state(each, folder))
        for each in CATALOGUE.values()
    ]


def verify(cache: Path | str | None = None, names: Iterable[str] | None = None) -> list[Check]:
    """Compare the checksum of every file of these data sets, by default of all."""
    folder = cache_directory(cache)
    chosen = [find(name) for name in (NAMES if names is None else names)]
    places = [(each.name, *place) for each in chosen for place in each.places(folder)]
    return [_check(name, file, path) for name, file, path in places]


def contents(chosen: DataSet, cache: Path) -> dict[str, bytes]:
    """Read the files of a data set, by name; a file with a wrong checksum is an error."""
    remedy = f"replace it: dropmuon data fetch {chosen.name}"
    if chosen.is_included:
        remedy = "install dropmuon again"
    return {file.name: _content(file, path, remedy) for file, path in chosen.places(cache)}


def is_missing(chosen: DataSet, cache: Path) -> bool:
    """Return whether a file of this data set is not in the cache at all."""
    return not chosen.is_included and any(not path.is_file() for _, path in chosen.places(cache))


def _content(file: File, path: Path, remedy: str) -> bytes:
    content = path.read_bytes()
    found = file.checksum_of(content)
    if found == file.checksum:
        return content
    size = f" and its size {len(content)}, not {file.size}" if len(content) != file.size else ""
    raise ValueError(
        f"{path} is damaged: its checksum is {found}, not {file.checksum}{size}; {remedy}"
    )


def _state(chosen: DataSet, cache: Path) -> Literal["included", "cached", "incomplete", "absent"]:
    if chosen.is_included:
        return "included"
    places = chosen.places(cache)
    if all(path.is_file() and path.stat().st_size == file.size for file, path in places):
        return "cached"
    return "incomplete" if any(path.exists() for _, path in places) else "absent"


def _check(name: str, file: File, path: Path) -> Check:
    found = file.checksum_at(path)
    if found is None:
        return Check(name, path, "missing", file.checksum, None)
    return Check(name, path, "ok" if found == file.checksum else "wrong", file.checksum, found)
