"""Train a small CNN on scikit-learn's digits with all layers and with Drop-Muon, side by side.

The methods take turns, epoch by epoch, so that whatever else the machine does affects all of them.
Only the time of training steps is counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.samplers import SamplerName

EPOCHS, BATCH, LR, MOMENTUM = 15, 256, 0.02, 0.5
TARGET = 0.93


def main() -> None:
    train, test = digits()
    steps = EPOCHS * len(list(batches(train, 0)))
    runs = [
        Run("all layers (full)", "full", steps),
        Run("Drop-Muon (uniform)", "uniform", steps),
        Run("Drop-Muon (epoch-shift)", "epoch-shift", steps),
    ]
    print(runs[1].optimizer, "\n")
    print(f"{'epoch':>5}", *(f"{run.name:>24}" for run in runs))
    for epoch in range(EPOCHS):
        for run in runs:
            run.train(train, epoch)
        print(f"{epoch + 1:>5}", *(f"{run.accuracy(test):>23.1%} " for run in runs))
    print()
    print(f"{'':>24}   time per step   of full's   training time to {TARGET:.0%}")
    for run in runs:
        reached = run.time_to(TARGET)
        print(
            f"{run.name:>24}   {1000 * run.step_time():>10.2f} ms"
            f"   {run.step_time() / runs[0].step_time():>8.2f}x"
            f"   {'not reached' if reached is None else f'{reached:.2f} s':>20}"
        )


@dataclass
class Run:
    """One method with its model and its clock."""

    name: str
    sampler: SamplerName
    steps: int
    seconds: list[float] = field(default_factory=list)
    reached: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = cnn()
        self.optimizer = DropMuon(
            self.model, lr=LR, momentum=MOMENTUM, sampler=self.sampler, total_steps=self.steps
        )

    def train(self, data: tuple[Tensor, Tensor], epoch: int) -> None:
        self.model.train()
        for x, y in batches(data, epoch):
            start = time.perf_counter()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def accuracy(self, data: tuple[Tensor, Tensor]) -> float:
        self.model.eval()
        x, y = data
        accuracy = float((self.model(x).argmax(1) == y).float().mean())
        self.reached.append((sum(self.seconds), accuracy))
        return accuracy

    def step_time(self) -> float:
        """Return the mean over all steps but those of the first epoch, which warms up."""
        later = self.seconds[len(self.seconds) // EPOCHS :]
        return sum(later) / len(later)

    def time_to(self, target: float) -> float | None:
        return next((seconds for seconds, accuracy in self.reached if accuracy >= target), None)


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    cut = int(0.8 * len(y))
    train, test = order[:cut], order[cut:]
    return (x[train], y[train]), (x[test], y[test])


def batches(data: tuple[Tensor, Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = data
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
    for index in order.split(BATCH):
        yield x[index], y[index]


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(512, 10)),
    )


if __name__ == "__main__":
    main()
