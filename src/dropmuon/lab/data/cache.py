"""The cache of data sets: where their files are kept, how they get there, whether they are intact.

To fetch a set, its sources are tried in turn; only verified files enter the cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pooch
from tqdm import tqdm

from dropmuon.lab.data.catalogue import CATALOGUE, NAMES, DataSet, find
from dropmuon.lab.data.download import Downloader
from dropmuon.lab.data.sources import File, Source

if sys.platform != "win32":
    import fcntl

__all__ = [
    "Check",
    "Fetched",
    "Status",
    "cache_directory",
    "contents",
    "fetch",
    "fetch_set",
    "is_missing",
    "status",
    "verify",
]

_VARIABLE = "DROPMUON_DATA"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did.

    Attributes:
        name: of the set.
        directory: where its files are; None if it is included.
        files: those that were fetched; empty if all were already intact.
        sources: where they came from.
        failures: the sources that failed, each with its reason.
    """

    name: str
    directory: Path | None
    files: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


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


def fetch(name: str, cache: Path | str | None = None, show_progress: bool = False) -> Fetched:
    """Fetch a data set into the cache; intact files are not fetched again."""
    return fetch_set(find(name), cache_directory(cache), show_progress=show_progress)


def fetch_set(chosen: DataSet, cache: Path, *, show_progress: bool = False) -> Fetched:
    """Fetch the files of this data set into the cache."""
    if chosen.is_included:
        return Fetched(chosen.name, None)
    target = cache / chosen.name
    if not _lacking(chosen.files, target):
        return Fetched(chosen.name, target)
    work = _prepared(target)
    with _alone(work):
        try:
            fetched = _from_sources(chosen, target, work, show_progress)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise OSError(
                f"no space left for {chosen.name} in the cache directory {cache}; free "
                f"{2 * chosen.size / 1e6:.0f} MB, or set DROPMUON_DATA to another directory"
            ) from error
        shutil.rmtree(work, ignore_errors=True)
    return fetched


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


def _from_sources(chosen: DataSet, target: Path, work: Path, show_progress: bool) -> Fetched:
    wanted = lacking = _lacking(chosen.files, target)
    used, failures = list[str](), list[str]()
    for source in chosen.sources:
        if not lacking:
            break
        if show_progress:
            tqdm.write(f"{chosen.name}: {source}", file=sys.stderr)
        before = lacking
        failure = _from_source(source, lacking, target, work, show_progress)
        lacking = _lacking(before, target)
        if len(lacking) < len(before):
            used.append(str(source))
        if lacking:
            failures.append(f"{source}: {failure}")
    if lacking:
        raise OSError(f"{chosen.name} could not be fetched: {'; '.join(failures)}")
    files = tuple(file.name for file in wanted)
    return Fetched(chosen.name, target, files, tuple(used), tuple(failures))


def _from_source(
    source: Source, wanted: Sequence[File], target: Path, work: Path, show_progress: bool
) -> str | None:
    """Move the right files of this source into place; return what is wrong with the rest.

    A resumed download may be wrong because its beginning was: it is then repeated from the start.
    """
    failure = None
    for _ in range(2):
        downloader = Downloader(work / "parts", show_progress=show_progress)
        failure = _attempt(source, _lacking(wanted, target), target, work, downloader)
        if failure is None or not downloader.was_resumed:
            break
    return failure


def _attempt(
    source: Source, wanted: Sequence[File], target: Path, work: Path, downloader: Downloader
) -> str | None:
    """Try a source once; any failure but a full disk is returned as a reason to try the next."""
    failure = None
    with tempfile.TemporaryDirectory(dir=work, prefix="draft-") as folder:
        draft = Path(folder)
        try:
            source.obtain(wanted, draft, downloader)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            failure = " ".join(str(error).split()) or type(error).__name__
        for file in wanted:
            found = file.checksum_at(draft / file.name)
            if found == file.checksum:
                (draft / file.name).replace(target / file.name)
            elif failure is None and found is None:
                failure = f"has no {file.name}"
            elif failure is None:
                failure = f"{file.name} has checksum {found}, not {file.checksum}"
    return failure


def _lacking(files: Sequence[File], target: Path) -> list[File]:
    """Return the files that are missing or wrong."""
    return [file for file in files if file.checksum_at(target / file.name) != file.checksum]


def _prepared(target: Path) -> Path:
    """Make the directory of a data set; return the path to work in, which does not exist yet."""
    place = target.parent / ".fetching"
    try:
        for folder in (target, place):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise OSError(
            f"the cache directory {target.parent} cannot be written ({error.strerror}); "
            "set DROPMUON_DATA to a writable directory"
        ) from error
    return place / target.name


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Wait until no other process fetches this set, then remove what a killed one left behind."""
    with work.with_suffix(".lock").open("w") as lock:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
        work.mkdir(exist_ok=True)
        for draft in work.glob("draft-*"):
            shutil.rmtree(draft, ignore_errors=True)
        yield
