"""Locks of the operating system on files: they end with the process that holds them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone", "try_lock"]

if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Lock an open file without waiting, and say whether that worked."""
        os.lseek(handle, 1 << 30, os.SEEK_SET)  # far from the content, which others read
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Lock an open file without waiting, and say whether that worked."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks
        return True


@contextmanager
def alone(directory: Path) -> Iterator[bool]:
    """Try to be the only process at work in a directory, and say whether that is so."""
    with (directory / ".lock").open("w") as file:
        yield try_lock(file.fileno())
