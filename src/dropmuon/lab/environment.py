"""Where a comparison ran: versions, processor, threads and load."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dropmuon.version import __version__

__all__ = ["describe"]


def describe(device: str, *, memory_kept: bool = False) -> dict[str, Any]:
    """What a reader needs to judge times by, as plain values."""
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
        "command": shlex.join(["dropmuon", *sys.argv[1:]]),
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
