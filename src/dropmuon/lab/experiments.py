"""The paper's experiments as configurations, at full size or shrunk for a small machine."""

from __future__ import annotations

from dataclasses import replace

from dropmuon.checks import unknown_name
from dropmuon.lab.config import Config

__all__ = ["EXPERIMENTS", "experiment"]

_LEAST_CHANNELS, _LEAST_EPOCHS = 4, 2

_PAPER = Config(
    model="cnn",
    lr=0.1,
    momentum=0.5,
    seeds=(0, 1, 2, 3, 4),
    methods=("full", "drop-muon:uniform", "drop-muon:epoch-shift"),
)

EXPERIMENTS: dict[str, Config] = {
    "mnist": replace(
        _PAPER,
        dataset="mnist",
        channels=(64, 128, 256),
        batch_size=8192,
        epochs=20,
        targets=(60.0, 70.0, 80.0, 90.0, 99.0),
        title="Paper: mnist",
    ),
    "fashion-mnist": replace(
        _PAPER,
        dataset="fashion-mnist",
        channels=(64, 128, 256),
        batch_size=32768,
        epochs=50,
        title="Paper: fashion-mnist",
    ),
    "cifar10": replace(
        _PAPER,
        dataset="cifar10",
        channels=(128, 256, 512),
        batch_norm=True,
        batch_size=8192,
        epochs=50,
        title="Paper: cifar10",
    ),
}
"""The paper's section "Experiments" and its appendix. The paper uses 20 or 50 epochs without
saying where: here MNIST has 20, and the others, which learn more slowly, have 50."""


def experiment(name: str, scale: float = 1.0) -> Config:
    """Return the settings of one of the paper's experiments.

    A `scale` below 1 multiplies channels and epochs (at least 4 channels and 2 epochs are kept) and
    is recorded in the settings, so that the report says so.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be in (0, 1], got {scale!r}; 1.0 is the paper's size")
    whole = EXPERIMENTS[name]
    return replace(
        whole,
        channels=tuple(max(_LEAST_CHANNELS, round(width * scale)) for width in whole.channels),
        epochs=max(_LEAST_EPOCHS, round(whole.epochs * scale)),
        scale=scale,
    )
