"""One method on one seed: a model, its optimizer, its place in the data, and its clock.

Initial weights, the order of data and augmentation are functions of the seed and the place in
training, and so are the draws of Drop-Muon. A trial that is restored from its saved state therefore
does what it would have done, whatever else ran in between.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method, Optimizer, Shared
from dropmuon.lab.models import build
from dropmuon.lab.run import Evaluation, finite
from dropmuon.lab.torch_muon import TorchMuon
from dropmuon.lab.train.meter import Batch, Counts, Meter, train_step
from dropmuon.optimizer import DropMuon
from dropmuon.samplers import ActiveSet, Sampler

__all__ = ["Trial", "initial_model", "shared_settings", "total_steps"]

_EVALUATION_BATCH, _EVALUATION_PREDICTIONS = 1000, 64_000
_ORDER, _AUGMENTATION, _SUBSET = range(3)
_PROGRESSES = [step / 20 for step in range(21)]


def total_steps(config: Config, found: data.Data) -> int:
    """Return the steps of a trial, from its first epoch to its last."""
    return config.epochs * _steps_per_epoch(config, found)


def shared_settings(config: Config, found: data.Data, seed: int) -> Shared:
    """Return what the methods of a comparison share on a seed."""
    steps = total_steps(config, found)
    return Shared(config.lr, config.momentum, config.policy, steps, seed)


def initial_model(config: Config, found: data.Data, seed: int) -> nn.Sequential:
    """Make the untrained model of a seed, the same for every method."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(
            config.model, found.shape, found.num_classes, config.channels, config.batch_norm
        )
    return model.to(config.device)


class Trial:
    """A training run in slices, with evaluations between them."""

    def __init__(
        self,
        config: Config,
        method: Method,
        seed: int,
        found: data.Data,
        initial: nn.Sequential,
        planned: Sampler | None = None,
        known: Counts | None = None,
    ) -> None:
        self.method, self.seed = method, seed
        self.key = f"{config.methods.index(method.name)}-seed{seed}"
        self._config, self._data = config, found
        self.epoch_steps = _steps_per_epoch(config, found)
        self.total_steps = total_steps(config, found)
        shared = shared_settings(config, found, seed)
        self.model = copy.deepcopy(initial)
        self.optimizer = method.optimizer(self.model, shared, planned)
        self._meter = Meter(
            initial,
            lambda model: method.optimizer(model, shared, planned),
            method.updates_per_batch,
            known,
        )
        self._settings = method.settings(shared)
        self.step, self.seconds, self.operations = 0, 0.0, 0.0
        self.evaluated_at = -1
        self._order_epoch, self._order = -1, torch.empty(0)
        self._moved, self._cutoffs = self._no_counts(), self._no_counts()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that the method draws from; empty for one that draws none."""
        return self.optimizer.layers if isinstance(self.optimizer, DropMuon) else ()

    def description(self) -> dict[str, Any]:
        """Return the settings, layers and sampling distribution of the method."""
        return {"settings": self._settings, **_drawing(self.optimizer)}

    def warm_up(self) -> None:
        """Let the meter take the first steps: on a whole batch, and on the last one of an epoch."""
        for step in sorted({0, self.epoch_steps - 1}):
            self._meter.warm_up(self._batch(step))

    def advance(self, steps: int) -> None:
        """Take this many steps on the clock; operations are counted after it has stopped."""
        self.model.train()
        taken: list[tuple[ActiveSet, int]] = []
        of_size: dict[int, Batch] = {}
        batches = self._batches(steps)
        self._synchronize()
        start = time.perf_counter()
        for batch in batches:
            size = len(batch[0])
            of_size[size] = batch
            taken.append((self._active(), size))
            train_step(self.model, self.optimizer, batch, self.method.updates_per_batch)
        self._synchronize()
        self.seconds += time.perf_counter() - start
        self.step += len(taken)
        for active, size in taken:
            self.operations += self._meter.operations(active, of_size[size])
            self._record(active)

    def evaluate(self) -> Evaluation:
        """Measure accuracies, off the clock, and restart the counts of layer activity."""
        train_accuracy, train_loss = self._measure(self._training_subset())
        test_accuracy, test_loss = self._measure(self._data.test)
        moved, cutoffs = tuple(self._moved.tolist()), tuple(self._cutoffs.tolist())
        self.evaluated_at = self.step
        self._moved, self._cutoffs = self._no_counts(), self._no_counts()
        return Evaluation(
            method=self.method.name,
            seed=self.seed,
            step=self.step,
            epoch=self.step / self.epoch_steps,
            seconds=self.seconds,
            operations=self.operations,
            train_accuracy=train_accuracy,
            train_loss=finite(train_loss),
            test_accuracy=test_accuracy,
            test_loss=finite(test_loss),
            moved=moved,
            cutoffs=cutoffs,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )

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
        self.step = self.evaluated_at = int(state["step"])
        self.seconds, self.operations = float(state["seconds"]), float(state["operations"])

    def _batches(self, steps: int) -> Iterator[Batch]:
        for step in range(self.step, min(self.step + steps, self.total_steps)):
            yield self._batch(step)

    def _batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.epoch_steps)
        if epoch != self._order_epoch:
            self._order_epoch, self._order = epoch, self._shuffled(epoch)
        size = self._config.batch_size
        inputs, targets = self._data.train.batch(self._order[place * size : (place + 1) * size])
        if self._config.augment:
            inputs = data.augment(inputs, _generator(self.seed, _AUGMENTATION, step))
        return inputs, targets

    def _shuffled(self, epoch: int) -> Tensor:
        generator = _generator(self.seed, _ORDER, epoch)
        order = torch.randperm(len(self._data.train), generator=generator)
        return order.to(self._data.train.inputs.device)

    def _training_subset(self) -> data.Examples:
        """Return the training examples that every evaluation of every trial uses."""
        train, count = self._data.train, self._config.train_examples
        if count >= len(train):
            return train
        index = torch.randperm(len(train), generator=_generator(0, _SUBSET, 0))[:count]
        return data.Examples(*train.batch(index.to(train.inputs.device)))

    @torch.no_grad()
    def _measure(self, examples: data.Examples) -> tuple[float, float]:
        """Return accuracy and mean loss."""
        self.model.eval()
        right = torch.zeros((), device=examples.targets.device)
        loss = torch.zeros((), device=examples.targets.device)
        per_example = examples.targets[0].numel()
        size = max(1, min(_EVALUATION_BATCH, _EVALUATION_PREDICTIONS // per_example))
        for start in range(0, len(examples), size):
            chosen = slice(start, start + size)
            logits, targets = self.model(examples.inputs[chosen]), examples.targets[chosen]
            right += (logits.argmax(1) == targets).sum()
            loss += F.cross_entropy(logits, targets, reduction="sum")
        total = examples.targets.numel()
        return float(right) / total, float(loss) / total

    def _active(self) -> ActiveSet:
        return self.optimizer.active if isinstance(self.optimizer, DropMuon) else ()

    def _record(self, active: ActiveSet) -> None:
        if active:
            self._moved[list(active)] += 1
            self._cutoffs[active[0]] += 1

    def _no_counts(self) -> Any:
        return np.zeros(len(self.layers), dtype=np.int64)

    def _synchronize(self) -> None:
        if torch.device(self._config.device).type != "cpu":
            torch.accelerator.synchronize(torch.device(self._config.device))


def _steps_per_epoch(config: Config, found: data.Data) -> int:
    """Return how many batches hold every example once; the last one may be smaller."""
    return -(-len(found.train) // config.batch_size)


def _generator(*place: int) -> torch.Generator:
    """Make a generator from its place in training alone."""
    state = np.random.SeedSequence(place).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)


def _drawing(optimizer: Optimizer) -> dict[str, Any]:
    """Return the layers, and how likely each is the cutoff and moves as training progresses."""
    if not isinstance(optimizer, DropMuon):
        return {
            "layers": [],
            "optimizer": _text(optimizer),
            "sampler": None,
            "progress": [],
            "cutoff": [],
            "moves": [],
        }
    b = len(optimizer.layers)
    marginals = [optimizer.sampler.marginals(b, progress) for progress in _PROGRESSES]
    return {
        "layers": list(optimizer.layers),
        "optimizer": str(optimizer),
        "sampler": repr(optimizer.sampler),
        "progress": _PROGRESSES,
        "cutoff": [np.diff(F, prepend=0.0).clip(0.0).tolist() for F, _ in marginals],
        "moves": [Q.tolist() for _, Q in marginals],
    }


def _text(optimizer: Optimizer) -> str:
    """Return class and main settings of an optimizer that is not ours."""
    if isinstance(optimizer, TorchMuon):
        return f"{_text(optimizer.muon)} and {_text(optimizer.adamw)}"
    settings = {k: v for k, v in optimizer.defaults.items() if k in {"lr", "momentum", "betas"}}
    return f"{type(optimizer).__name__}({settings})"
