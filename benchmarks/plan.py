"""Compare plans with training: predicted and measured gain at equal cost.

    python benchmarks/plan.py [--seeds 3] [--budget 20] [--output benchmarks/plan.txt] [--quick]

A CNN and an MLP on Fashion-MNIST and a GPT on tiny Shakespeare, each at a large batch, where parts
should pay, and at a small one, where they should not. For each: make a plan, and train with the
option that it expects the most of, recommended or not. The cost of its step is measured in seconds,
relative to a full one, both taking turns. It may spend as much as a given number of full steps, and
so takes more of its own; its learning rate falls linearly to zero over them. Full updates are
trained at several budgets, each with a decay of its own, in as many pieces as the option has parts,
since small pieces alone may save time. The measured gain is the budget at which
they reach the same test loss, interpolated, over the budget that the option had: at most 4, at
least 0.5. Learning rates are the same for both. The raw output, with command and machine at its
top, is also written to the file given as output. All of it takes about a quarter of an hour on two
quiet cores; `--quick` only shows that it works.
"""

from __future__ import annotations

import argparse
import copy
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, __version__, plan
from dropmuon.lab import data, models
from dropmuon.planning import Option
from dropmuon.samplers import Full

FULL: Mapping[str, Any] = {"sampler": Full()}
BETTER, WORSE = (1.4, 2.0, 2.8, 4.0), (0.7, 0.5)
"""Further budgets of full updates, relative to the option's, by which of the two is better."""

PLANNING_BATCHES, TIMED, TESTED = 32, 9, 4000

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A model, its data, its optimizer's settings, a batch size and a number of full steps."""

    model: str
    dataset: str
    batch: int
    steps: int
    settings: dict[str, Any]
    channels: tuple[int, ...]
    loaded: dict[str, data.Data] = field(default_factory=dict, compare=False)

    def make(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return models.build(self.model, self.data.shape, self.data.num_classes, self.channels)

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.data.train), generator=generator)
            for part in order.split(self.batch):
                if len(part) == self.batch:
                    yield self.data.train.batch(part)

    @property
    def data(self) -> data.Data:
        if not self.loaded:
            self.loaded["it"] = data.load(self.dataset)
        return self.loaded["it"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each plan")
    parser.add_argument("--only", help="a model: cnn, gpt or mlp")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--output", type=Path, help="also write the raw output to this file")
    options = parser.parse_args()
    lines: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    say(f"$ python {' '.join(sys.argv)}\n{environment()}")
    seeds, budget = (1, 2.0) if options.quick else (options.seeds, options.budget)
    rows = [
        compare(case, range(seeds), budget, say)
        for case in (quick_cases() if options.quick else cases())
        if options.only in (None, case.model)
    ]
    say("\nmodel  batch  option  recommended  predicted  measured (each seed)  cost of a step")
    for row in rows:
        say(row)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


def cases() -> list[Case]:
    pictures: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "by": models.item_of}
    text = {"lr": 0.05, "adamw_lr": 0.005, "momentum": 0.9, "policy": "muon", "by": models.item_of}
    cnn, mlp, gpt = (8, 16, 32), (512, 512, 512), (64, 64, 64, 64)
    return [
        Case("cnn", "fashion-mnist", 4096, 30, pictures, cnn),
        Case("cnn", "fashion-mnist", 128, 400, pictures, cnn),
        Case("gpt", "shakespeare", 128, 60, text, gpt),
        Case("gpt", "shakespeare", 8, 400, text, gpt),
        Case("mlp", "fashion-mnist", 4096, 30, pictures, mlp),
        Case("mlp", "fashion-mnist", 128, 250, pictures, mlp),
    ]


def quick_cases() -> list[Case]:
    text = {"lr": 0.05, "adamw_lr": 0.005, "policy": "muon", "by": models.item_of}
    pictures: dict[str, Any] = {"lr": 0.1, "by": models.item_of}
    return [
        Case("cnn", "fashion-mini", 256, 6, pictures, (4, 4, 4)),
        Case("gpt", "shakespeare", 16, 4, text, (32, 32)),
        Case("mlp", "fashion-mini", 64, 6, pictures, (16, 16)),
    ]


def environment() -> str:
    return (
        f"dropmuon {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.machine()}"
    )


def compare(case: Case, seeds: range, budget: float, say: Callable[[str], None]) -> str:
    """Plan, train and return a row of the table."""
    drawn = case.batches(10_000)
    batches = [next(drawn) for _ in range(PLANNING_BATCHES)]
    found = plan(case.make(0), loss, batches, steps=case.steps, budget=budget, **case.settings)
    say(f"\n== {case.model}, {case.batch} per batch, {case.steps} full steps\n{found}\n")
    option = max(found.options[1:], key=lambda each: each.fresh.speedup)
    cost = relative_cost(case, option)
    steps = max(2, round(case.steps / cost))
    say(f"{option.name}: a step takes {cost:.2f} of a full one, so {steps} of them fit")
    gains = [gain(case, option, steps, seed, say) for seed in seeds]
    shown = ", ".join(f"{each:.2f}" for each in gains)
    return (
        f"{case.model}  {case.batch}  {option.name}  {'yes' if found.gain_expected else 'no'}  "
        f"{option.fresh}  {statistics.median(gains):.2f} ({shown})  {cost:.2f}"
    )


def relative_cost(case: Case, option: Option) -> float:
    """Return the time of a step of the option over that of a full one, taking turns."""
    pieces = option.settings.get("parts", 1)
    runs = [Run(case, settings, 0, 10**6, pieces) for settings in (FULL, option.settings)]
    rounds = max(TIMED, 3 * option.settings.get("turns", 1))
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 2):  # the first two steps are full, and start everything
        for run, spent in zip(runs, times, strict=True):
            start = time.perf_counter()
            run.step()
            spent.append(time.perf_counter() - start)
    full, own = (statistics.fmean(sorted(each[2:])[: rounds - rounds // 4]) for each in times)
    return own / full


def gain(case: Case, option: Option, steps: int, seed: int, say: Callable[[str], None]) -> float:
    """Return the budget at which full updates are as good as the option, over the option's."""
    pieces = option.settings.get("parts", 1)
    target = Run(case, option.settings, seed, steps, pieces).final()
    curve = [(1.0, Run(case, FULL, seed, case.steps, pieces).final())]
    is_better = target < curve[0][1]
    for share in BETTER if is_better else WORSE:
        if (target < curve[-1][1]) == is_better:
            steps = max(2, round(share * case.steps))
            curve.append((share, Run(case, FULL, seed, steps, pieces).final()))
    found = crossing(curve, target)
    shown = ", ".join(f"{budget:g}: {value:.4f}" for budget, value in curve)
    say(f"  seed {seed}: {target:.4f}; full at {shown}; gain {found:.2f}")
    return found


def crossing(curve: list[tuple[float, float]], target: float) -> float:
    """Return where the losses, made to fall with the budget, meet the target; at most an end."""
    pairs = sorted(curve)
    falling = np.minimum.accumulate([value for _, value in pairs])
    places = [math.log(budget) for budget, _ in pairs]
    return math.exp(float(np.interp(-target, -falling, places)))


class Run:
    """A training run: a learning rate that falls linearly to zero, and the test loss at its end."""

    def __init__(
        self, case: Case, settings: Mapping[str, Any], seed: int, steps: int, pieces: int
    ) -> None:
        self.case, self.steps, self.pieces, self.done = case, steps, pieces, 0
        self.model = copy.deepcopy(case.make(seed))
        self.optimizer = DropMuon(self.model, seed=seed, **case.settings, **settings)
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.batches = case.batches(seed)

    def step(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * (1.0 - self.done / self.steps)
        batch = next(self.batches)
        if self.optimizer.parts > 1:
            for part in self.optimizer.split(*batch):
                loss(self.model, part).backward()
        else:
            for piece in zip(*(each.chunk(self.pieces) for each in batch), strict=True):
                (loss(self.model, piece) / self.pieces).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def final(self) -> float:
        """Take all steps, and return the test loss."""
        for _ in range(self.steps):
            self.step()
        self.model.eval()
        index = torch.arange(len(self.case.data.test))[:TESTED]
        with self.optimizer.full(), torch.no_grad():
            values = [
                float(loss(self.model, self.case.data.test.batch(part))) * len(part)
                for part in index.split(1000)
            ]
        return sum(values) / len(index)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


if __name__ == "__main__":
    main()
