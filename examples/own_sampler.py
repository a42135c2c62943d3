"""Give a model a sampler of your own: which layers a backward is for, and how often.

The sampler here draws all layers now and then, and only the top ones otherwise. Its draws are
compared with the probabilities that it states. Then it trains a network with one set per step, and
in four parts per step, where each part has a set of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.samplers import ActiveSet, Full, Sampler
from dropmuon.samplers.base import FloatArray


@dataclass(frozen=True)
class AllOrTop(Sampler):
    """All layers with this probability, and only the top ones otherwise."""

    probability: float = 0.25
    top: int = 1

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        cutoff = 0 if rng.random() < self.probability else num_layers - self.top
        return tuple(range(cutoff, num_layers))

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        return tuple(range(num_layers)), tuple(range(num_layers - self.top, num_layers))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        moves = np.full(num_layers, self.probability)
        moves[-self.top :] = 1.0
        return moves, moves  # backward reaches a layer where it moves, and only there

    def check(self, num_layers: int) -> None:
        if not 0 < self.top < num_layers:
            raise ValueError(
                f"top must be between 1 and {num_layers - 1} for {num_layers} layers, got "
                f"{self.top}; leave some layers below the top"
            )

    @property
    def needs_progress(self) -> bool:
        return False


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(given)
    check_draws(AllOrTop(), num_layers=4)
    print(f"{'':>22}  test accuracy  moves of the first layer, of the head")
    for name, sampler, parts in (
        ("all layers", Full(), 1),
        ("all or top", AllOrTop(), 1),
        ("all or top, in parts", AllOrTop(), 4),
    ):
        accuracy, moves = outcome(sampler, parts, options.epochs)
        print(f"{name:>22}  {accuracy:>13.1%}  {moves[0]}, {moves[-1]}")


def check_draws(sampler: Sampler, num_layers: int, draws: int = 4000) -> None:
    """Check that layers are drawn as often as the sampler says, to five standard deviations."""
    rng = np.random.default_rng(0)
    counts = np.zeros(num_layers)
    for _ in range(draws):
        counts[list(sampler.sample(num_layers, rng))] += 1
    stated = sampler.marginals(num_layers)[1]
    assert np.abs(counts / draws - stated).max() <= 2.5 / np.sqrt(draws)
    print(f"drawn: {counts / draws}, stated: {stated}\n")


def outcome(sampler: Sampler, parts: int, epochs: int) -> tuple[float, list[int]]:
    """Train a network on scikit-learn's digits; return its accuracy and the moves of its layers."""
    torch.manual_seed(0)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    train, test = torch.randperm(len(y)).split([1280, len(y) - 1280])
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(size, 128), nn.ReLU()) for size in (64, 128, 128)),
        nn.Linear(128, 10),
    )
    with DropMuon(model, lr=0.02, momentum=0.9, sampler=sampler, parts=parts) as optimizer:
        for _ in range(epochs):
            for index in train[torch.randperm(len(train))].split(256):
                for inputs, labels in optimizer.split(x[index], y[index]):
                    F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
    with torch.no_grad():
        accuracy = float((model(x[test]).argmax(1) == y[test]).float().mean())
    return accuracy, list(optimizer.moves.values())


if __name__ == "__main__":
    main()
