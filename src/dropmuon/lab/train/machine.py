"""The machine that a comparison runs on: steadier times, and what a reader needs to judge them."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dropmuon.output import readable
from dropmuon.version import __version__

__all__ = ["environment", "keep_freed_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_GIBIBYTE = 2**30


def keep_freed_memory() -> bool:
    """Make this process keep freed memory for the next step; return whether it can.

    By default the C library of Linux maps each large tensor and unmaps it when it is freed.
    The first access to every page then causes a fault, which can cost more than the arithmetic on
    the page and is the noisiest part of a step. Other platforms and C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2 * _GIBIBYTE - 1, _TOP_PAD: _GIBIBYTE // 8}
    for name, value in options.items():
        set_option(name, value)
    return True


def environment(device: str, *, memory_kept: bool = False) -> dict[str, Any]:
    """Return what a reader needs to judge times: versions, processor, threads and load."""
    return {
        "dropmuon": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": _device_name(device),
        "freed_memory": "kept" if memory_kept else "as the system does",
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["dropmuon", *map(readable, sys.argv[1:])]),
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _device_name(device: str) -> str:
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device
