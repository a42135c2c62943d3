"""What is equal for all methods of a comparison: initial weights, batches, and what may be spent.

Weights, the order of the data and augmentation are functions of the seed and the place in training,
never of a generator that others use. A budget is epochs of a trial's own, or what some epochs of
the baseline cost; then every method takes as many steps as fit. Operations are the same on every
machine; seconds are those of this one, measured before training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method, Shared
from dropmuon.lab.models import build
from dropmuon.lab.train.meter import Batch, Counts, Meter
from dropmuon.samplers import Full

__all__ = [
    "Budget",
    "Epochs",
    "Feed",
    "check_fits",
    "expected_operations",
    "initial_model",
    "measured_budget",
    "shared_settings",
    "training_subset",
    "without_validation",
]

_ORDER, _AUGMENTATION, _SUBSET, _VALIDATION = range(4)

_TIMED_STEPS, _TIMED_SECONDS = 5, 1.0


def initial_model(
    config: Config, found: data.Data, seed: int, start: Mapping[str, Tensor] | None = None
) -> nn.Sequential:
    """Make the model of a seed before training, the same for every method.

    `start` has trained weights; whatever it lacks, such as the head, is random.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(
            config.model,
            found.shape,
            found.num_classes,
            config.channels,
            config.batch_norm,
            config.join_head,
        )
    if start is not None:
        model.load_state_dict({**model.state_dict(), **start})
    return model.to(config.device)


@dataclass(frozen=True)
class Epochs:
    """How the examples of a training set make steps.

    Attributes:
        examples: of the training set.
        size: of a batch.
        steps: of an epoch; the last batch may be smaller.
    """

    examples: int
    size: int
    steps: int

    @classmethod
    def of(cls, config: Config, found: data.Data, method: Method) -> Epochs:
        """Cut an epoch into a method's batches; a rest too small for its parts is left out."""
        size, least = method.batch_size(config.batch_size), 1
        if method.parts > 1:
            least = 2 * method.parts
        whole, rest = divmod(len(found.train), size)
        return cls(len(found.train), size, whole + (rest >= least))

    def size_at(self, step: int) -> int:
        """Return the size of the batch of a step."""
        return min(self.size, self.examples - step % self.steps * self.size)

    def total(self, epochs: float) -> int:
        """Return the steps of so many epochs."""
        return round(epochs * self.steps)


class Feed:
    """The batches of one trial, by step."""

    def __init__(self, config: Config, found: data.Data, method: Method, seed: int) -> None:
        self.epochs = Epochs.of(config, found, method)
        self._train, self._seed, self._augments = found.train, seed, config.augment
        self._order_epoch, self._order = -1, torch.empty(0)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""
        epoch, place = divmod(step, self.epochs.steps)
        if epoch != self._order_epoch:
            self._order_epoch, self._order = epoch, self._shuffled(epoch)
        size = self.epochs.size
        inputs, targets = self._train.batch(self._order[place * size : (place + 1) * size])
        if self._augments:
            inputs = data.augment(inputs, _generator(self._seed, _AUGMENTATION, step))
        return inputs, targets

    def _shuffled(self, epoch: int) -> Tensor:
        generator = _generator(self._seed, _ORDER, epoch)
        order = torch.randperm(len(self._train), generator=generator)
        return order.to(self._train.inputs.device)


def training_subset(train: data.Examples, count: int) -> data.Examples:
    """Return the training examples that every evaluation of every trial uses."""
    if count >= len(train):
        return train
    index = torch.randperm(len(train), generator=_generator(0, _SUBSET, 0))[:count]
    return data.Examples(*train.batch(index.to(train.inputs.device)))


def without_validation(found: data.Data, share: float) -> data.Data:
    """Return the data for tuning: a share of the training set takes the place of the test set.

    It is the end of a permutation that is always the same.
    """
    count = len(found.train)
    order = torch.randperm(count, generator=_generator(0, _VALIDATION, 0))
    kept = min(max(count - round(share * count), 1), count - 1)
    order = order.to(found.train.inputs.device)
    train, validation = (
        data.Examples(*found.train.batch(part)) for part in (order[:kept], order[kept:])
    )
    return data.Data(found.name, found.kind, train, validation, found.num_classes, found.shape)


def _generator(*place: int) -> torch.Generator:
    """Make a generator from its place in training alone."""
    state = np.random.SeedSequence(place).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)


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
