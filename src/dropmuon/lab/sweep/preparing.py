"""What has to be right before a worker takes cells: directory, data and device."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dropmuon.files import write_json
from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.sweep.grids import Cell, SweepSpec

__all__ = ["check_ready", "is_resumable", "prepare"]


def prepare(spec: SweepSpec, out: Path) -> None:
    """Make the directory, or check that the one that is there is of this very sweep."""
    path = out / "sweep.json"
    if path.exists():
        try:
            kept = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}; the sweep is damaged") from error
        if kept != {"format": 1, **spec.to_json()}:
            raise ValueError(f"out {out} holds another sweep; choose another --out for this one")
        return
    if out.exists() and (not out.is_dir() or any(map(_is_foreign, out.iterdir()))):
        raise ValueError(f"out {out} exists and is not a sweep; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": 1, **spec.to_json()})


def check_ready(cells: Sequence[Cell]) -> None:
    """Refuse to work where data or device are missing, or all cells would fail here."""
    configs = [cell.config for cell in cells]
    for device in dict.fromkeys(config.device for config in configs):
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"device {device!r} is not on this machine: {reason}") from error
    for name, context in dict.fromkeys((config.dataset, config.context) for config in configs):
        data.load(name, device="cpu", context=context)


def is_resumable(directory: Path, config: Config) -> bool:
    """Whether a cell's directory holds a run of these very settings."""
    asked: dict[str, Any] = json.loads(json.dumps(config.to_json()))
    try:
        return RunDirectory(directory).config == asked
    except (OSError, ValueError):
        return False


def _is_foreign(path: Path) -> bool:
    """Whether a file is none of those that another worker, just started, makes as well."""
    return not re.match(r"\.?(sweep\.json|study\.journal|cells$)", path.name)
