"""Where fetched files are kept, and whether they are still what they were."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pooch

from dropmuon.lab.data.catalogue import CATALOGUE, EMBEDDED, EMBEDDED_PATH, NAMES, DataSet, find
from dropmuon.lab.data.checksums import File

__all__ = [
    "Check",
    "Status",
    "cache_directory",
    "contents",
    "embedded",
    "missing",
    "status",
    "verify",
]

_VARIABLE = "DROPMUON_DATA"


@dataclass(frozen=True)
class Status:
    """A data set and whether it is at hand.

    Attributes:
        name: of the set.
        about: what it is, in a line.
        licence: under which it may be used.
        size: in bytes, as kept.
        state: "included" (needs no fetching), "cached", "incomplete" or "absent". Sizes are looked
            at, contents are not: that is what `verify` does.
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
    """A file of a data set, and whether it is what it must be.

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
    """The given directory, else `$DROPMUON_DATA`, else the platform's place for caches."""
    variable = os.environ.get(_VARIABLE)
    argument = "cache" if cache is not None else _VARIABLE
    path = Path(cache or variable or pooch.os_cache("dropmuon")).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"{argument} must be a directory, got {path}, which is a file")
    return path.absolute()


def status(cache: Path | str | None = None) -> list[Status]:
    """Every data set, and whether it is at hand."""
    folder = cache_directory(cache)
    return [
        Status(each.name, each.about, each.licence, each.size, _state(each, folder))
        for each in CATALOGUE.values()
    ]


def verify(cache: Path | str | None = None, names: Iterable[str] | None = None) -> list[Check]:
    """Read every file of these sets (all, if none are named) and compare its checksum."""
    folder = cache_directory(cache)
    chosen = [find(name) for name in (NAMES if names is None else names)]
    return [check for each in chosen for check in _checks(each, folder)]


def contents(name: str, cache: Path) -> dict[str, bytes]:
    """The files of a set by name, each compared with its checksum; what is wrong is not used."""
    chosen = find(name)
    return {
        file.name: _content(file, path, f"replace it: dropmuon data fetch {name}")
        for file, path in _places(chosen, cache)
    }


def embedded() -> bytes:
    """The archive that comes with the package."""
    return _content(EMBEDDED, EMBEDDED_PATH, "install dropmuon again")


def missing(chosen: DataSet, cache: Path) -> list[File]:
    """The files of a set that are not in the cache at all."""
    return [file for file, path in _places(chosen, cache) if not path.is_file()]


def _content(file: File, path: Path, remedy: str) -> bytes:
    content = path.read_bytes()
    found = file.found_in(content)
    if found == file.checksum:
        return content
    size = f" and its size {len(content)}, not {file.size}" if len(content) != file.size else ""
    raise ValueError(
        f"{path} is damaged: its checksum is {found}, not {file.checksum}{size}; {remedy}"
    )


def _places(chosen: DataSet, cache: Path) -> list[tuple[File, Path]]:
    return [(file, cache / chosen.name / file.name) for file in chosen.files]


def _state(chosen: DataSet, folder: Path) -> Literal["included", "cached", "incomplete", "absent"]:
    if not chosen.files:
        return "included"
    places = _places(chosen, folder)
    if all(path.is_file() and path.stat().st_size == file.size for file, path in places):
        return "cached"
    return "incomplete" if any(path.exists() for _, path in places) else "absent"


def _checks(chosen: DataSet, folder: Path) -> list[Check]:
    if chosen.name == "fashion-mini":
        return [_check(chosen.name, EMBEDDED, EMBEDDED_PATH)]
    return [_check(chosen.name, file, path) for file, path in _places(chosen, folder)]


def _check(name: str, file: File, path: Path) -> Check:
    found = file.found_at(path)
    if found is None:
        return Check(name, path, "missing", file.checksum, None)
    return Check(name, path, "ok" if found == file.checksum else "wrong", file.checksum, found)
