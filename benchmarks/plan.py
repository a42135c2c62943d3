"""Compare plans with training: predicted and measured cost of a step, predicted and measured gain.

    python benchmarks/plan.py [--budget 30] [--steps 60] [--output benchmarks/plan.txt]

For three models: make a plan; then train with full updates, with uniform cutoffs and with the
planned sampler. The methods take turns, step by step, on the same batches and from the same
weights. Reported are the predicted and the measured cost of a step relative to full updates, and
the time to the loss that full updates have after the given number of steps. Every method may take
three times as many steps. The raw output, with the command and the machine at its top, is also
written to the file given as output.
"""

from __future__ import annotations

import argparse
import copy
import platform
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, __version__, plan
from dropmuon.planning import Plan
from dropmuon.samplers import Full, Progressive, Sampler
from dropmuon.theory import expected_cost

Batches = Callable[[int], tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, help="also write the raw output to this file")
    options = parser.parse_args()
    lines: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    say(f"$ python {' '.join(sys.argv)}\n{environment()}")
    for title, model, batches, settings in (cnn(), transformer(), mlp()):
        data = [batches(k) for k in range(3 * options.steps)]
        found = plan(model, loss, data[:8], budget=options.budget, **settings)
        say(f"\n== {title}\n{found}\n")
        compare(found, model, data, settings, options.steps, say)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


def environment() -> str:
    return (
        f"dropmuon {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.machine()}"
    )


def compare(
    found: Plan,
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    settings: dict[str, Any],
    steps: int,
    say: Callable[[str], None],
) -> None:
    samplers: dict[str, Sampler] = {"full": Full(), "uniform": Progressive(), "plan": found.sampler}
    runs = {name: Run(model, sampler, settings) for name, sampler in samplers.items()}
    for k in range(len(data)):
        for run in runs.values():
            run.step(data[k])
    fresh, b = found.costs.seconds.fresh(), len(found.costs.layers)
    target = runs["full"].smoothed()[steps - 1]
    say(f"time to the loss of full updates after {steps} steps ({target:.3f}), cost of a step:")
    for name, run in runs.items():
        predicted = expected_cost(samplers[name], fresh) / expected_cost(Full(), fresh)
        sets = [found.costs.predict(active) for active in run.sets[1:]]
        drawn = sum(sets) / len(sets) / found.costs.predict(range(b))
        measured = run.mean() / runs["full"].mean()
        reached, whole = run.time_to(target), runs["full"].time_to(target)
        sooner = "not reached" if reached is None or whole is None else f"{whole / reached:.2f}x"
        say(
            f"  {name:8} {sooner:>11} as fast;  expected {predicted:.2f} of full, for the sets "
            f"drawn {drawn:.2f}, measured {measured:.2f} ({measured / drawn - 1:+.0%})"
        )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Run:
    """A training run of one sampler on its own copy of the model."""

    def __init__(self, model: nn.Module, sampler: Sampler, settings: dict[str, Any]) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = DropMuon(self.model, sampler=sampler, **settings)
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.sets: list[tuple[int, ...]] = []

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.sets.append(self.optimizer.active)
        start = time.perf_counter()
        value = loss(self.model, batch)
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(float(value.detach()))

    def mean(self) -> float:
        return sum(self.seconds[1:]) / len(self.seconds[1:])

    def smoothed(self, over: int = 8) -> list[float]:
        return [
            sum(self.losses[max(0, k - over + 1) : k + 1]) / min(over, k + 1)
            for k in range(len(self.losses))
        ]

    def time_to(self, target: float) -> float | None:
        for k, value in enumerate(self.smoothed()):
            if value <= target:
                return sum(self.seconds[: k + 1])
        return None


def prototypes(classes: int, *shape: int) -> Tensor:
    return torch.randn(classes, *shape, generator=torch.Generator().manual_seed(1))


def noisy(centres: Tensor, count: int, noise: float) -> Batches:
    """Return a function that makes batches of noisy class prototypes, which can be learned."""

    def batch(k: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(100 + k)
        y = torch.randint(0, len(centres), (count,), generator=generator)
        x = centres[y] + noise * torch.randn(count, *centres.shape[1:], generator=generator)
        return x, y

    return batch


def cnn() -> tuple[str, nn.Module, Batches, dict[str, Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(256 * 9, 10)),
    )
    batches = noisy(prototypes(10, 1, 28, 28), 128, 3.0)
    return "the paper's CNN, 64-128-256", model, batches, {"lr": 0.02}


def transformer() -> tuple[str, nn.Module, Batches, dict[str, Any]]:
    torch.manual_seed(0)
    blocks = [
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(6)
    ]
    model = nn.Sequential(nn.Linear(16, 128), *blocks, Last(), nn.Linear(128, 10))
    batches = noisy(prototypes(10, 32, 16), 32, 3.0)
    return "a transformer of 6 blocks", model, batches, {"lr": 0.02, "by": by_item}


def mlp() -> tuple[str, nn.Module, Batches, dict[str, Any]]:
    torch.manual_seed(0)
    widths = [256, 1024, 1024, 1024]
    hidden = [nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in pairwise(widths)]
    model = nn.Sequential(*hidden, nn.Linear(1024, 10))
    return "a wide MLP", model, noisy(prototypes(10, 256), 512, 4.0), {"lr": 0.02}


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def by_item(name: str, parameter: Tensor) -> str:
    return name.partition(".")[0]


if __name__ == "__main__":
    main()
