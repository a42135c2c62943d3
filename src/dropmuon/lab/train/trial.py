"""One method on one seed: a model, its optimizer, its place in the data, and its clock.

Initial weights, the order of data and augmentation are functions of the seed and the place in
training, and so are the draws of Drop-Muon. A trial that is restored from its saved state therefore
does what it would have done, whatever else ran in between.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method, drawing
from dropmuon.lab.run import Evaluation, finite
from dropmuon.lab.train.equal_terms import (
    Budget,
    Feed,
    expected_operations,
    shared_settings,
    training_subset,
)
from dropmuon.lab.train.meter import Counts, Meter, StepKind, next_kind, train_step
from dropmuon.optimizer import DropMuon

__all__ = ["Trial"]

_ROUNDING = 1e-9
"""The share of a budget by which sums may miss it."""

_EVALUATION_BATCH, _EVALUATION_PREDICTIONS = 1000, 64_000


class Trial:
    """A training run in slices, with evaluations between them.

    Attributes:
        step: steps taken so far.
        seconds: spent in them.
        operations: of them.
        evaluated_at: progress at the last evaluation; -1 before the first.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        seed: int,
        found: data.Data,
        initial: nn.Sequential,
        budget: Budget,
        planned: Mapping[str, Any] | None = None,
        known: Counts | None = None,
    ) -> None:
        self.method, self.seed = method, seed
        self.key = f"{config.methods.index(method.name)}-seed{seed}"
        self._config, self._data, self._budget = config, found, budget
        self.feed = Feed(config, found, method, seed)
        self._amount = budget.amount(self.feed.epochs)
        shared = shared_settings(config, budget.steps, seed)
        self._meter = Meter(
            initial,
            lambda model: method.optimizer(model, shared, planned),
            method.updates_per_batch,
            config.piece,
            known,
        )
        self._settings = method.settings(shared)
        self.model = copy.deepcopy(initial)
        shared = shared_settings(config, self._planned_steps(), seed)
        self.optimizer = method.optimizer(self.model, shared, planned)
        self._schedule = method.schedule(config.rate_schedule)
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.step, self.seconds, self.operations = 0, 0.0, 0
        self.evaluated_at = -1.0
        self._upcoming: _Upcoming | None = None
        self._forget_activity()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that the method draws from; empty for one that draws none."""
        return self.optimizer.layers if isinstance(self.optimizer, DropMuon) else ()

    def description(self) -> dict[str, Any]:
        """Return the settings, layers and sampling distribution of the method."""
        return {"settings": self._settings, **drawing(self.optimizer)}

    @property
    def spent(self) -> float:
        """The share of the budget that is spent."""
        return self._spent() / self._amount

    @property
    def progress(self) -> float:
        """The share of training that is done: what is spent, and 1 if nothing more fits."""
        return 1.0 if self.is_finished else self.spent

    @property
    def is_finished(self) -> bool:
        """Whether another step would exceed the budget."""
        return self._spent() + self._next().cost > self._amount * (1 + _ROUNDING)

    def warm_up(self) -> None:
        """Let the meter take the first steps: on a whole batch, and on the last one of an epoch."""
        for step in sorted({0, self.feed.epochs.steps - 1}):
            self._meter.warm_up(self.feed.batch(step))

    def advance(self, until: float) -> None:
        """Take steps on the clock until this share of the budget is spent, or no more fit.

        Operations are counted while the clock is stopped.
        """
        self.model.train()
        while self.spent < until and not self.is_finished:
            following = self._next()
            self._synchronize()
            start = time.perf_counter()
            self._set_rates(following.cost)
            batch = self.feed.batch(self.step)
            updates, piece = self.method.updates_per_batch, self._config.piece
            train_step(self.model, self.optimizer, batch, updates, piece)
            self._synchronize()
            self.seconds += time.perf_counter() - start
            self.step += 1
            self.operations += following.operations
            self._record(following.kind)
            self._upcoming = None

    def evaluate(self) -> Evaluation:
        """Measure losses and accuracies, off the clock, and restart the counts of activity."""
        subset = training_subset(self._data.train, self._config.train_examples)
        train_accuracy, train_loss = measured(self.model, subset)
        test_accuracy, test_loss = measured(self.model, self._data.test)
        self.evaluated_at = self.progress
        shares = (self._shares / self._recorded).tolist() if self._recorded else ()
        found = Evaluation(
            method=self.method.name,
            seed=self.seed,
            step=self.step,
            epoch=self.step / self.feed.epochs.steps,
            seconds=self.seconds,
            operations=float(self.operations),
            train_accuracy=train_accuracy,
            train_loss=finite(train_loss),
            test_accuracy=test_accuracy,
            test_loss=finite(test_loss),
            moved=tuple(self._moved.tolist()),
            cutoffs=tuple(self._cutoffs.tolist()),
            shares=tuple(shares),
            noise=tuple(map(finite, getattr(self.optimizer, "noise", None) or ())),
            progress=self.evaluated_at,
            train_bits_per_byte=_bits(self._data, train_loss),
            test_bits_per_byte=_bits(self._data, test_loss),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )
        self._forget_activity()
        return found

    def state(self) -> dict[str, Any]:
        """Return everything that the rest of training depends on, right after an evaluation."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "operations": self.operations,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.operations = int(state["operations"])
        self._upcoming = None
        self.evaluated_at = self.progress

    def _planned_steps(self) -> int:
        """Return how many steps to expect, for samplers that change with progress."""
        if self._budget.unit == "epochs":
            return int(self._amount)
        if not self._meter.needs_progress:
            return self._budget.steps
        epoch = self.feed.epochs.steps
        expected = expected_operations(self._meter, self.feed, epoch) / epoch
        return max(1, round(self._budget.operations / expected))

    def _next(self) -> _Upcoming:
        """Return the next step, and what it costs; counted once per kind, off the clock."""
        if self._upcoming is None:
            size = self.feed.epochs.size_at(self.step)
            kind = next_kind(self.optimizer, self.step, size)
            operations = self._meter.known(kind)
            if operations is None:
                operations = self._meter.operations(kind, self.feed.batch(0))
            cost = {"epochs": 1.0, "ops": operations}.get(self._budget.unit)
            if cost is None:  # seconds: at the pace so far
                cost = operations * self.seconds / self.operations if self.operations else 0.0
            self._upcoming = _Upcoming(kind, operations, cost)
        return self._upcoming

    def _spent(self) -> float:
        """Return what is spent, in the unit of the budget."""
        spent = {"epochs": self.step, "ops": self.operations, "seconds": self.seconds}
        return spent[self._budget.unit]

    def _set_rates(self, cost: float) -> None:
        """Set the learning rates of a step that costs this much."""
        factor = self._schedule.factor(self.spent, (self._spent() + cost) / self._amount)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def _record(self, kind: StepKind) -> None:
        if not self.layers:
            return
        self._recorded += 1
        self._moved[list(kind.union)] += 1
        for active in kind.sets:
            self._cutoffs[active[0]] += 1
            self._shares[list(active)] += 1 / len(kind.sets)

    def _forget_activity(self) -> None:
        count = len(self.layers)
        self._moved, self._cutoffs = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._shares, self._recorded = np.zeros(count), 0

    def _synchronize(self) -> None:
        if torch.device(self._config.device).type != "cpu":
            torch.accelerator.synchronize(torch.device(self._config.device))


def _bits(found: data.Data, loss: float) -> float | None:
    """Return the loss in bits per byte, for text."""
    return finite(loss / math.log(2)) if found.kind == "bytes" else None


@dataclass(frozen=True)
class _Upcoming:
    """The next step: its kind, its operations, and its cost in the unit of the budget."""

    kind: StepKind
    operations: int
    cost: float


@torch.no_grad()
def measured(model: nn.Module, examples: data.Examples) -> tuple[float, float]:
    """Return accuracy and mean loss."""
    model.eval()
    right = torch.zeros((), device=examples.targets.device)
    loss = torch.zeros((), device=examples.targets.device)
    per_example = examples.targets[0].numel()
    size = max(1, min(_EVALUATION_BATCH, _EVALUATION_PREDICTIONS // per_example))
    for start in range(0, len(examples), size):
        chosen = slice(start, start + size)
        logits, targets = model(examples.inputs[chosen]), examples.targets[chosen]
        right += (logits.argmax(1) == targets).sum()
        loss += F.cross_entropy(logits, targets, reduction="sum")
    total = examples.targets.numel()
    return float(right) / total, float(loss) / total
