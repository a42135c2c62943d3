"""The description of a run: where it ran, and how each method draws its layers."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dropmuon.lab.methods import Optimizer
from dropmuon.lab.torch_muon import TorchMuon
from dropmuon.lab.train.trial import Trial
from dropmuon.optimizer import DropMuon
from dropmuon.version import __version__

__all__ = ["environment", "methods"]

_PROGRESSES = [step / 20 for step in range(21)]


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
        "command": shlex.join(["dropmuon", *sys.argv[1:]]),
    }


def methods(trials: Iterable[Trial]) -> dict[str, Any]:
    """Return settings, layers and sampling distribution of every method, by name."""
    return {
        trial.method.name: {"settings": trial.settings, **_drawing(trial.optimizer)}
        for trial in trials
    }


def _drawing(optimizer: Optimizer) -> dict[str, Any]:
    """Return the layers, and how likely each is the cutoff and moves as training progresses."""
    if not isinstance(optimizer, DropMuon):
        return {
            "layers": [],
            "optimizer": _text(optimizer),
            "sampler": None,
            "progress": [],
            "cutoff": [],
            "moves": [],
        }
    b = len(optimizer.layers)
    marginals = [optimizer.sampler.marginals(b, progress) for progress in _PROGRESSES]
    return {
        "layers": list(optimizer.layers),
        "optimizer": str(optimizer),
        "sampler": repr(optimizer.sampler),
        "progress": _PROGRESSES,
        "cutoff": [np.diff(F, prepend=0.0).clip(0.0).tolist() for F, _ in marginals],
        "moves": [Q.tolist() for _, Q in marginals],
    }


def _text(optimizer: Optimizer) -> str:
    """Return class and main settings of an optimizer that is not ours."""
    if isinstance(optimizer, TorchMuon):
        return f"{_text(optimizer.muon)} and {_text(optimizer.adamw)}"
    settings = {k: v for k, v in optimizer.defaults.items() if k in {"lr", "momentum", "betas"}}
    return f"{type(optimizer).__name__}({settings})"


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
