"""Is the first layer's smoothness constant the largest? The paper's condition, on four models.

    python benchmarks/first_layer.py [--budget 30]

Among progressive samplers full updates are optimal if and only if it is (Theorem rpt_p1), which the
paper checks on NanoGPT alone. Here the planner estimates the constants along a short run of full
updates, in each layer's own norm, and the theory's optimal probabilities follow from them. More
budget means more points on the run.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from dropmuon import plan
from dropmuon.lab import data, models

CASES: dict[str, dict[str, Any]] = {
    "CNN 8-16-32, Fashion-MNIST": {"model": "cnn", "channels": (8, 16, 32)},
    "MLP of 3 x 256, Fashion-MNIST": {"model": "mlp", "channels": (256, 256, 256)},
    "ResNet-18 of 8-16-32-64, Fashion-MNIST": {"model": "resnet18", "channels": (8, 16, 32, 64)},
    "GPT of 4 blocks of 64, Shakespeare": {"model": "gpt", "channels": (64, 64, 64, 64)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each model")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.budget:g} s")
    for title, case in CASES.items():
        report(title, options.budget, **case)


def report(title: str, budget: float, model: str, channels: tuple[int, ...]) -> None:
    text = model == "gpt"
    found = data.load("shakespeare" if text else "fashion-mini")
    torch.manual_seed(0)
    network = models.build(model, found.shape, found.num_classes, channels)
    size = 32 if text else 256
    order = torch.randperm(len(found.train))
    batches = [found.train.batch(order[k * size : (k + 1) * size]) for k in range(16)]
    settings: dict[str, Any] = {
        "by": models.item_of,
        "policy": "muon" if text else "spectral",
        "momentum": 0.5,
    }
    made = plan(
        network,
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]),
        batches,
        lr=0.02 if text else 0.05,
        budget=budget,
        regime="smooth",
        **settings,
    )
    bounds = made.bounds
    assert bounds is not None, "a regime was given"
    everything = tuple(range(len(bounds.smoothness.layers)))
    smooth = bounds.smoothness.smooth.constants(0, everything)
    slope = bounds.smoothness.generalized.constants(1, everything)
    intervals = bounds.smoothness.intervals.smooth[everything]
    print(f"\n{title}: {bounds.smoothness.points} points")
    for layer, name in enumerate(bounds.smoothness.layers):
        low, high = intervals[layer]
        print(f"  {name:10} L {smooth[layer]:9.3g} ({low:.3g} to {high:.3g})", end="")
        print(f"   L1 {slope[layer]:9.3g}")
    answers = {True: "holds", False: "does not hold", None: "no L1 was found"}
    print(f"  condition for full updates, L: {answers[bounds.full_update_is_optimal]}", end="")
    print(f"; L1: {answers[bounds.full_update_is_optimal_generalized]}")
    (best,) = (each for each in bounds.options if each.name == "progressive, optimal")
    marginals, _ = best.sampler.marginals(len(everything))
    print("  optimal probabilities of the cutoffs:", np.diff(marginals, prepend=0).round(3))


if __name__ == "__main__":
    main()
