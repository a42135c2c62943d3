"""Compare drawing with and without stale momentum, and with and without even draws, over seeds.

    python benchmarks/momentum.py [--steps 100] [--seeds 10] [--output benchmarks/momentum.txt]

The CNN 8-16-32 of the lab on the built-in part of Fashion-MNIST, 128 examples per batch, learning
rates that fall linearly to zero. Losses and operations only (those of the passes, by cutoff, and of
the updates, counted once each): nothing depends on the machine's speed.
The spread is the standard deviation over seeds; "draws" varies only the seed of the draws, "all"
also that of initial weights and batches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.lab import data
from dropmuon.lab.models import build, item_of
from dropmuon.lab.train.meter import Meter, next_kind
from dropmuon.samplers import Progressive, Serial, Stratified

BATCH = 128

METHODS: dict[str, dict[str, Any]] = {
    "all layers": {"sampler": "full"},
    "uniform": {"sampler": Progressive()},
    "uniform, momentum refreshed": {"sampler": Progressive(), "truncate": "refresh"},
    "uniform, even over 8 steps": {"sampler": Stratified(Progressive(), 8)},
    "one layer": {"sampler": Serial()},
    "one layer, momentum refreshed": {"sampler": Serial(), "truncate": "refresh"},
    "one layer, even over 8 steps": {"sampler": Stratified(Serial(), 8)},
}

COUNTS: dict[str, Any] = {}
"""Operations of pieces of steps, by method."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=METHODS, help="one method; all by default")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--output", type=Path, help="also append the raw output to this file")
    options = parser.parse_args()
    found = data.load("fashion-mini")
    lines = [
        f"$ python {' '.join(sys.argv)}",
        f"{'method':30s} {'vary':5s}   mean  spread    operations  losses",
    ]
    for name, settings in METHODS.items():
        if options.only not in (None, name):
            continue
        for vary in ("draws", "all"):
            seeds = range(options.seeds) if name != "all layers" or vary == "all" else range(1)
            runs = [
                train(found, seed if vary == "all" else 0, seed, options, settings)
                for seed in seeds
            ]
            losses = np.array([loss for loss, _ in runs])
            spread = losses.std(ddof=1) if len(losses) > 1 else 0.0
            lines.append(
                f"{name:30s} {vary:5s} {losses.mean():6.4f}  {spread:6.4f}  "
                f"{np.mean([operations for _, operations in runs]):.6e}  "
                + " ".join(f"{loss:.4f}" for loss in losses)
            )
            print(lines[-1], flush=True)
    if options.output is not None:
        with options.output.open("a") as file:
            file.write("\n".join(lines) + "\n")


def train(
    found: data.Data,
    seed: int,
    draws: int,
    options: argparse.Namespace,
    settings: dict[str, Any],
) -> tuple[float, int]:
    """Return the test loss after training, and the operations that it took."""
    torch.manual_seed(seed)
    model = build("cnn", found.shape, found.num_classes, (8, 16, 32))

    def make(model: nn.Module) -> DropMuon:
        return DropMuon(model, options.lr, options.momentum, seed=draws, by=item_of, **settings)

    meter = Meter(model, make, 1, COUNTS.setdefault(str(settings), {}))
    optimizer = make(model)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / options.steps)
    generator = torch.Generator().manual_seed(1000 + seed)
    operations = 0
    for step in range(options.steps):
        index = torch.randint(len(found.train), (BATCH,), generator=generator)
        inputs, targets = found.train.batch(index)
        operations += meter.operations(next_kind(optimizer, step, BATCH), (inputs, targets))
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        decay.step()
    return test_loss(model, found), operations


@torch.no_grad()
def test_loss(model: nn.Module, found: data.Data) -> float:
    inputs, targets = found.test.batch(torch.arange(len(found.test)))
    return float(F.cross_entropy(model(inputs), targets))


if __name__ == "__main__":
    main()
