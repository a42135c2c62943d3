"""What all methods share on a seed: the initial weights, the order of the data, augmentation.

All of it is a function of the seed and the place in training, never of a generator that others use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method
from dropmuon.lab.models import build
from dropmuon.lab.train.meter import Batch

__all__ = ["Epochs", "Feed", "initial_model", "training_subset", "without_validation"]

_ORDER, _AUGMENTATION, _SUBSET, _VALIDATION = range(4)


def initial_model(config: Config, found: data.Data, seed: int) -> nn.Sequential:
    """Make the untrained model of a seed, the same for every method."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(
            config.model, found.shape, found.num_classes, config.channels, config.batch_norm
        )
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
