"""Accumulate gradients over four micro-batches, with all layers and with parts, at equal cost.

With `parts=4`, a loop that accumulates over four micro-batches stays as it is: each backward is a
part, with a cutoff of its own. A step in parts costs less, so there are more of them. One seed and
one learning rate: differences of a point mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, samplers

PIECES = 4
METHODS: dict[str, samplers.Sampler] = {
    "all layers": samplers.Full(),
    "parts": samplers.Shares([0.25, 0.25, 0.25, 1.0]),
    "adaptive": samplers.Adaptive(),
}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="of all layers; others cost as much")
    options = parser.parse_args(given)
    train, test = digits()
    budget = 0.0
    print(f"{'':>10}  steps  operations  test accuracy")
    for name, sampler in METHODS.items():
        torch.manual_seed(0)
        model = network()
        optimizer = DropMuon(model, lr=0.02, sampler=sampler, parts=PIECES, by="block")
        spent = 0.0
        with FlopCounterMode(display=False) as counter:
            while optimizer.steps < options.steps if not budget else spent < budget:
                step(model, optimizer, *train)
                spent = counter.get_total_flops()
        budget = budget or spent
        print(f"{name:>10}  {optimizer.steps:>5}  {spent:>10.2e}  {accuracy(model, *test):>13.1%}")


def step(model: nn.Module, optimizer: DropMuon, x: Tensor, y: Tensor) -> None:
    """Take one step over all examples: the loop of anyone who accumulates gradients."""
    for inputs, labels in zip(x.chunk(PIECES), y.chunk(PIECES), strict=True):
        loss = F.cross_entropy(model(inputs), labels) / PIECES
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 10)),
    )


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1280], order[1280:]
    return (x[train], y[train]), (x[test], y[test])


if __name__ == "__main__":
    main()
