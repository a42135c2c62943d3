"""What methods.json tells: settings, layers, and how each method draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.trial import Trial
from dropmuon.optimizer import DropMuon

__all__ = ["describe"]

_PROGRESSES = [step / 20 for step in range(21)]


def describe(run: RunDirectory, trials: Sequence[Trial]) -> None:
    """Write layers and sampling distributions, once."""
    if (run.path / "methods.json").exists():
        return
    run.write("methods.json", {trial.method.name: _description(trial) for trial in trials})


def _description(trial: Trial) -> dict[str, Any]:
    return {"settings": trial.settings, **_drawing(trial.optimizer)}


def _drawing(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Layers, and how likely each is the cutoff and moves, as training goes on."""
    if not isinstance(optimizer, DropMuon):
        settings = {k: v for k, v in optimizer.defaults.items() if k in {"lr", "momentum", "betas"}}
        text = f"{type(optimizer).__name__}({settings})"
        return {
            "layers": [],
            "optimizer": text,
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
