"""What a method is, in plain values: its layers and how likely each of them moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from dropmuon.lab.methods import Optimizer
from dropmuon.lab.torch_muon import TorchMuon
from dropmuon.optimizer import DropMuon

__all__ = ["drawing"]

_PROGRESSES = [step / 20 for step in range(21)]


def drawing(optimizer: Optimizer) -> dict[str, Any]:
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
        "parts": optimizer.parts,
        "turns": optimizer.draws.turns,
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
