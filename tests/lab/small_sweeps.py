"""Sweeps of a small network on the digits."""

from __future__ import annotations

from dropmuon.lab.sweep import SweepSpec

BASE = {
    "dataset": "digits",
    "model": "mlp",
    "channels": [8],
    "epochs": 1,
    "batch_size": 256,
    "seeds": [0],
    "methods": ["muon"],
    "evaluations_per_epoch": 1,
    "train_examples": 100,
    "threads": 1,
}


def spec_of(grid=None, base=None, **rest) -> SweepSpec:
    return SweepSpec.of({"base": BASE | (base or {}), "grid": grid or {}, **rest})
