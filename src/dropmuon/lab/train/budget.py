"""How much a trial may spend: epochs of its own, or what some epochs of the baseline cost.

At equal cost every method takes as many steps as fit. Operations are the same on every machine;
seconds are those of this one, measured before training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method, Shared
from dropmuon.lab.train.meter import Counts, Meter
from dropmuon.lab.train.seeded import Epochs, Feed, initial_model
from dropmuon.samplers import Full

__all__ = ["Budget", "check_fits", "expected_operations", "measured_budget", "shared_settings"]

_TIMED_STEPS, _TIMED_SECONDS = 5, 1.0


@dataclass(frozen=True)
class Budget:
    """What every trial of a comparison may spend.

    Attributes:
        unit: "epochs", "ops" or "seconds".
        epochs: of the trial itself, or of the baseline.
        steps: of the baseline.
        operations: of those steps; 0 where they do not matter.
        seconds: of those steps on this machine; None unless they are the unit.
    """

    unit: str
    epochs: float
    steps: int
    operations: float = 0.0
    seconds: float | None = None

    def amount(self, own: Epochs) -> float:
        """Return the budget in its unit; epochs are counted in steps of the trial itself."""
        if self.unit == "epochs":
            return max(1, own.total(self.epochs))
        return self.operations if self.seconds is None else self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `Budget(**values)` reads back."""
        return dict(vars(self))


def shared_settings(config: Config, total_steps: int, seed: int) -> Shared:
    """Return what the methods of a comparison share on a seed."""
    return Shared(config.lr, config.momentum, config.policy, total_steps, seed)


def measured_budget(config: Config, found: data.Data, known: Counts | None = None) -> Budget:
    """Return what the asked epochs of the baseline cost, in the unit of the comparison."""
    method = config.method(config.baseline)
    epochs = Epochs.of(config, found, method)
    steps = epochs.total(config.epochs)
    if steps < 1:
        raise ValueError(
            f"epochs must make at least one step of {method.name}, whose epoch has {epochs.steps}, "
            f"got {config.epochs!r}; give at least {1 / epochs.steps:.3g}"
        )
    if config.budget == "epochs":
        return Budget("epochs", config.epochs, steps)
    meter, feed = _meter(config, found, method, steps, known)
    operations = expected_operations(meter, feed, steps)
    if config.budget == "ops":
        return Budget("ops", config.epochs, steps, operations)
    batch = feed.batch(0)
    seconds = _typical_seconds(lambda: meter.warm_up(batch), config.device)
    seconds *= operations / meter.expected(epochs.size, batch)
    return Budget("seconds", config.epochs, steps, operations, seconds)


def expected_operations(meter: Meter, feed: Feed, steps: int) -> float:
    """Return the expected operations of the first steps of training, short batches counted."""
    epochs, batch = feed.epochs, feed.batch(0)
    last = epochs.size_at(epochs.steps - 1)
    short = steps // epochs.steps if last < epochs.size else 0
    operations = (steps - short) * meter.expected(epochs.size, batch)
    return operations + short * meter.expected(last, batch) if short else operations


def check_fits(
    config: Config, found: data.Data, method: Method, budget: Budget, known: Counts | None = None
) -> None:
    """Raise ValueError if an optimizer rejects its settings, or not even its first step fits."""
    meter, feed = _meter(config, found, method, budget.steps, known)
    if budget.unit == "epochs":
        return
    first = meter.operations(meter.first_kind(feed.epochs.size), feed.batch(0))
    if first > budget.operations:
        raise ValueError(
            f"epochs must pay for one step of {method.name}, {first:.3g} operations, got "
            f"{config.epochs!r}, which is {budget.operations:.3g}; give more"
        )


def _meter(
    config: Config, found: data.Data, method: Method, steps: int, known: Counts | None
) -> tuple[Meter, Feed]:
    """Return a meter of a method on the first seed, and its batches; any sampler is a plan."""
    seed = config.seeds[0]
    shared = shared_settings(config, steps, seed)
    meter = Meter(
        initial_model(config, found, seed),
        lambda model: method.optimizer(model, shared, {"sampler": Full()}),
        method.updates_per_batch,
        config.piece,
        None if method.needs_plan else known,
    )
    return meter, Feed(config, found, method, seed)


def _typical_seconds(step: Callable[[], None], device: str) -> float:
    """Return the median time of a step, the first of which warms it up."""
    times: list[float] = []
    while len(times) <= _TIMED_STEPS or sum(times) < _TIMED_SECONDS:
        start = time.perf_counter()
        step()
        if torch.device(device).type != "cpu":
            torch.accelerator.synchronize(torch.device(device))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
