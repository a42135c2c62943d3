"""Ask the planner about a model of your own: do parts, turns or a smaller batch pay?

A plan needs a model, a loss and batches of the size to train with. Here it is made for one model at
a large and at a small batch, and each answer goes straight into the optimizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, plan

Batch = tuple[Tensor, Tensor]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the two plans")
    options = parser.parse_args(given)
    for size in (1280, 64):
        torch.manual_seed(0)
        model = network()
        found = plan(model, loss, batches(size), lr=0.05, steps=100, budget=options.seconds)
        print(f"batches of {size}\n\n{found}\n")
        with DropMuon(model, lr=0.05, **found.settings) as optimizer:
            for x, y in batches(size)[:5]:
                for part in optimizer.split(x, y):
                    loss(model, part).backward()
                optimizer.step()
                optimizer.zero_grad()
        print(f"trained for {optimizer.steps} steps in {optimizer.parts} part(s)\n")


def loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 10)),
    )


def batches(size: int) -> list[Batch]:
    """Return 16 batches of scikit-learn's digits, each drawn anew."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    chosen = [torch.randperm(len(y))[:size] for _ in range(16)]
    return [(x[index], y[index]) for index in chosen]


if __name__ == "__main__":
    main()
