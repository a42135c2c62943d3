"""Freed memory is kept for the next step, not handed back to the operating system.

By default the C library of Linux maps each large tensor anew and unmaps it when it is freed, and
the first touch of every page costs more than the arithmetic on it. A CNN on batches of 4096 trained
twice as fast without that, on a CPU; and the time of page faults is the noisiest of all.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_GIBIBYTE = 2**30


def keep_freed_memory() -> bool:
    """Set the allocator of this process so, where it is glibc's; say whether it is."""
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2 * _GIBIBYTE - 1, _TOP_PAD: _GIBIBYTE // 8}
    for name, value in options.items():
        set_option(name, value)
    return True
