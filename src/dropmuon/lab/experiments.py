"""The paper's experiments as settings, at full size or shrunk for a small machine."""

from __future__ import annotations

from typing import Any

from dropmuon.checks import unknown_name
from dropmuon.lab.config import Config

__all__ = ["EXPERIMENTS", "experiment"]

_LEAST_CHANNELS, _LEAST_EPOCHS = 4, 2

_SHARED: dict[str, Any] = {
    "model": "cnn",
    "lr": 0.1,
    "momentum": 0.5,
    "seeds": (0, 1, 2, 3, 4),
    "methods": ("muon", "drop-muon:uniform", "drop-muon:epoch-shift"),
}

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "mnist": {
        "dataset": "mnist",
        "channels": (64, 128, 256),
        "batch_size": 8192,
        "epochs": 20,
        "targets": (60.0, 70.0, 80.0, 90.0, 99.0),
    },
    "fashion-mnist": {
        "dataset": "fashion-mnist",
        "channels": (64, 128, 256),
        "batch_size": 32768,
        "epochs": 50,
        "targets": (60.0, 70.0, 80.0, 90.0),
    },
    "cifar10": {
        "dataset": "cifar10",
        "channels": (128, 256, 512),
        "batch_norm": True,
        "batch_size": 8192,
        "epochs": 50,
        "targets": (60.0, 70.0, 80.0, 90.0),
    },
}
"""Section "Experiments" and its appendix. The paper fixes 20 or 50 epochs without saying which
where: here MNIST has 20 and the others, which learn slower, 50."""


def experiment(name: str, scale: float = 1.0, **changes: Any) -> Config:
    """The settings of one of the paper's experiments.

    A `scale` below 1 multiplies channels and epochs (at least 4 channels and 2 epochs are kept) and
    is written into the settings, so that the report says so.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be in (0, 1], got {scale!r}; 1.0 is the paper's size")
    settings = {**_SHARED, **EXPERIMENTS[name], "scale": scale, "title": f"Paper: {name}"}
    settings["channels"] = tuple(
        max(_LEAST_CHANNELS, round(width * scale)) for width in settings["channels"]
    )
    settings["epochs"] = max(_LEAST_EPOCHS, round(settings["epochs"] * scale))
    return Config(**{**settings, **changes})
