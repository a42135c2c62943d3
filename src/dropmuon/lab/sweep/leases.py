"""Locks: one cell per machine, and each cell held by its worker while it lives."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from dropmuon.lab.run import try_lock

__all__ = ["Heartbeat", "LeaseLostError", "Machine"]

LOCK_VARIABLE = "DROPMUON_MACHINE_LOCK"
"""Environment variable with another lock file, for workers that may share a machine."""


class LeaseLostError(Exception):
    """The worker counts as dead, and another one may have taken its cell."""


class Machine:
    """This machine, which only one cell may use at a time, even across users.

    The lock is the operating system's lock on a file, so it ends with the process that holds it.
    The file's content names the machine: while a worker holds the lock, no other cell that is
    recorded as running on a machine of that name is really running.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or _lock_path()
        self._handle = -1
        self.id = ""

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Try to hold the machine inside the block; yield whether that succeeded."""
        got = self._acquire()
        try:
            yield got
        finally:
            if got:
                os.close(self._handle)

    def keep(self) -> None:
        """Touch the lock file, so that cleaners of the temporary directory keep it."""
        with suppress(OSError):
            os.utime(self._path)

    def _acquire(self) -> bool:
        while True:
            handle = _opened(self._path)
            if not try_lock(handle):
                os.close(handle)
                return False
            if _is_at(handle, self._path):
                self._handle = handle
                os.lseek(handle, 0, os.SEEK_SET)
                self.id = os.read(handle, 64).decode()
                return True
            os.close(handle)


class Heartbeat:
    """A thread that regularly reports that a worker is alive.

    Args:
        beat: is called with 1, 2, 3, ...; raises LeaseLostError once the cell is another worker's.
        grace: seconds without a beat after which other workers may take the cell.
    """

    def __init__(self, beat: Callable[[int], None], grace: float) -> None:
        self._beat, self._grace = beat, grace
        self._count, self._last, self._is_lost = 0, time.time(), False
        self._one_at_a_time, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._once()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise LeaseLostError if another worker has taken the cell or, after grace, may have."""
        if not self._is_lost and time.time() - self._last > self._grace / 2:
            with suppress(Exception):
                self._once()
        if self._is_lost or time.time() - self._last > self._grace:
            raise LeaseLostError

    def _repeat(self) -> None:
        while not self._is_lost and not self._stop.wait(self._grace / 4):
            with suppress(Exception):  # the storage may be back for the next beat
                self._once()

    def _once(self) -> None:
        with self._one_at_a_time:
            self._count += 1
            try:
                self._beat(self._count)
            except LeaseLostError:
                self._is_lost = True
            else:
                self._last = time.time()


def _lock_path() -> Path:
    given = os.environ.get(LOCK_VARIABLE)
    if given:
        return Path(given)
    shared = Path("/tmp")  # TMPDIR may differ between users
    place = shared if shared.is_dir() and sys.platform != "win32" else Path(tempfile.gettempdir())
    return place / "dropmuon-machine.lock"


def _opened(path: Path) -> int:
    """Open the lock file, which is created with its content and never written again."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            _make(path)
            return os.open(path, flags)
    except OSError as error:
        raise OSError(
            f"the machine's lock file {path} cannot be used: {error.strerror}; remove it, or name "
            f"another one in {LOCK_VARIABLE}"
        ) from error


def _make(path: Path) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(uuid.uuid4().hex)
        Path(draft).chmod(0o644)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        Path(draft).unlink()


def _is_at(handle: int, path: Path) -> bool:
    """Return whether the open file is still the one at its path, and has not been removed."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
