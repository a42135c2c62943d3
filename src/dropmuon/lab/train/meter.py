"""The cost of training steps: operations counted on a copy, and times that can be judged.

Times are steadier where freed memory is kept, and a reader must know where they were measured.
"""

from __future__ import annotations

import copy
import ctypes
import os
import platform
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon.lab.methods import Optimizer
from dropmuon.optimizer import DropMuon
from dropmuon.planning.timing import EXTRA_OPERATIONS
from dropmuon.samplers import ActiveSet
from dropmuon.version import __version__

__all__ = ["Batch", "Counts", "Meter", "environment", "keep_freed_memory", "train_step"]

Batch = tuple[Tensor, Tensor]
Counts = dict[tuple[ActiveSet, int], int]
"""Operations by the layers that move and the size of the batch."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_GIBIBYTE = 2**30


def train_step(model: nn.Module, optimizer: Optimizer, batch: Batch, updates: int = 1) -> None:
    """Take one step of an ordinary training loop: loss, backward, step, zero_grad."""
    inputs, targets = batch

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    if updates > 1:
        optimizer.step(closure)  # type: ignore[arg-type]
    else:
        closure()
        optimizer.step()
    optimizer.zero_grad()


class Meter:
    """A counter of operations per step, by the layers that move and the size of the batch.

    A copy of the model takes the counted steps, so that they change neither the trained model nor
    its clock. Element-wise operations are not counted, as in `torch.utils.flop_counter`. The
    counts in `known` are shared by the trials of a method.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], Optimizer],
        updates: int,
        known: Counts | None = None,
    ) -> None:
        self._model = copy.deepcopy(model)
        self._optimizer = make_optimizer(self._model)
        self._updates = updates
        self._warm = False
        self._known: Counts = {} if known is None else known

    def warm_up(self, batch: Batch) -> None:
        """Take a step of the copy on this batch, so that the first step on the clock is warm."""
        with torch.random.fork_rng(devices=[]):
            train_step(self._model, self._optimizer, batch, self._updates)
        self._warm = True

    def operations(self, active: ActiveSet, batch: Batch) -> int:
        """Return the operations of one step that moves these layers on a batch of this size."""
        key = active, len(batch[0])
        if key not in self._known:
            if not self._warm:
                self.warm_up(batch)
            with torch.random.fork_rng(devices=[]):
                self._known[key] = self._count(active, batch)
        return self._known[key]

    def _count(self, active: ActiveSet, batch: Batch) -> int:
        if isinstance(self._optimizer, DropMuon):
            self._optimizer.zero_grad()
            self._optimizer.activate(active)
        with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
            train_step(self._model, self._optimizer, batch, self._updates)
        return int(counter.get_total_flops())


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
