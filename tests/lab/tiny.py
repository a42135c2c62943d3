"""A comparison that takes a second."""

from __future__ import annotations

from typing import Any

from dropmuon.lab.config import Config

METHODS = ("full", "drop-muon:uniform", "drop-muon:epoch-shift", "adamw")


def tiny(**changes: Any) -> Config:
    """Return its settings, with changes."""
    settings: dict[str, Any] = {
        "dataset": "digits",
        "model": "mlp",
        "channels": (16, 12),
        "batch_size": 400,
        "budget": "epochs",
        "epochs": 2,
        "seeds": (0, 3),
        "methods": METHODS,
        "evaluations_per_epoch": 2,
        "train_examples": 300,
        "lr": 0.05,
    }
    return Config(**{**settings, **changes})
