"""The cost of training steps: operations, counted on a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon.lab.methods import Optimizer
from dropmuon.model.work import EXTRA_OPERATIONS
from dropmuon.optimizer import DropMuon
from dropmuon.samplers import ActiveSet

__all__ = [
    "Batch",
    "Counts",
    "Meter",
    "StepKind",
    "next_kind",
    "train_step",
]

Batch = tuple[Tensor, Tensor]
Component = tuple[str, ActiveSet, int, int]
"""A component of a step: what is done, the layers that it is for, the examples, and the turn."""

Counts = dict[Component, int]
_EVERYONE = -1
_STAGES, _DRAWS = 16, 8
"""Stages of training, and steps of each, that an expected cost is the mean of."""


def train_step(
    model: nn.Module, optimizer: Optimizer, batch: Batch, updates: int = 1, piece: int | None = None
) -> None:
    """Take one step of an ordinary training loop: loss, backward, step, zero_grad.

    Gradients are accumulated over the parts of the optimizer or, if it has none, over pieces of at
    most this many examples.
    """

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    if updates > 1:
        optimizer.step(closure)  # type: ignore[arg-type]
    else:
        _backward(model, optimizer, batch, piece)
        optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class StepKind:
    """What the cost of a step depends on.

    Attributes:
        sets: the active set of each part; one empty set for an optimizer without layers.
        size: examples of the batch.
        turn: whose turn it is to move; -1 if every parameter moves although there are turns.
    """

    sets: tuple[ActiveSet, ...]
    size: int
    turn: int

    @property
    def union(self) -> ActiveSet:
        """The layers that move."""
        return tuple(sorted({layer for each in self.sets for layer in each}))


def next_kind(optimizer: Optimizer, step: int, size: int) -> StepKind:
    """Return the kind of the next step, the one of this number, on a batch of this size."""
    if not isinstance(optimizer, DropMuon):
        return StepKind(((),), size, 0)
    turn = optimizer.draws.turn_at(step) if optimizer.draws.turns > 1 else 0
    return StepKind(optimizer.active_sets, size, _EVERYONE if turn is None else turn)


class Meter:
    """A counter of operations per step: the passes of its parts, and the update of what moves.

    A copy of the model takes the counted steps, so that they change neither the trained model nor
    its clock. Element-wise operations are not counted, as in `torch.utils.flop_counter`. The
    counts in `known` are shared by the trials of a method.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], Optimizer],
        updates: int = 1,
        piece: int | None = None,
        known: Counts | None = None,
    ) -> None:
        self._model = copy.deepcopy(model)
        self._optimizer = make_optimizer(self._model)
        self._updates, self._piece = updates, piece
        self._steps = 0
        self._known: Counts = {} if known is None else known

    def warm_up(self, batch: Batch) -> None:
        """Take a step of the copy on this batch, so that the first step on the clock is warm."""
        with torch.random.fork_rng(devices=[]):
            train_step(self._model, self._optimizer, batch, self._updates, self._piece)
        self._steps += 1

    def known(self, kind: StepKind) -> int | None:
        """Return the operations of a step of this kind; None if it was never counted."""
        found = [self._known.get(key) for key in self._components(kind)]
        return None if None in found else sum(each for each in found if each is not None)

    def operations(self, kind: StepKind, batch: Batch) -> int:
        """Return the operations of a step of this kind, for which this batch is large enough."""
        for key in self._components(kind):
            if key not in self._known:
                if not self._steps:
                    self.warm_up(batch)
                with torch.random.fork_rng(devices=[]):
                    self._known[key] = self._count(key, batch)
        return sum(self._known[key] for key in self._components(kind))

    @property
    def needs_progress(self) -> bool:
        """Whether the cost of steps changes as training goes on."""
        return isinstance(self._optimizer, DropMuon) and self._optimizer.sampler.needs_progress

    def first_kind(self, size: int) -> StepKind:
        """Return the kind of the first step of training, on a batch of this size."""
        if not isinstance(self._optimizer, DropMuon):
            return next_kind(self._optimizer, 0, size)
        sets = self._optimizer.draws.sets_at(0, len(self._optimizer.layers), self._optimizer.parts)
        return StepKind(sets, size, _EVERYONE if self._optimizer.draws.turns > 1 else 0)

    def expected(self, size: int, batch: Batch) -> float:
        """Return the mean operations of a step on batches of this size, over all of training."""
        if not isinstance(self._optimizer, DropMuon):
            return self.operations(next_kind(self._optimizer, 0, size), batch)
        turns = self._optimizer.draws.turns
        costs = [
            self.operations(StepKind(sets, size, draw % turns), batch)
            for draw, sets in enumerate(self._draws(self._optimizer))
        ]
        return sum(costs) / len(costs)

    def _draws(self, optimizer: DropMuon) -> Iterator[tuple[ActiveSet, ...]]:
        """Draw the sets of steps at all stages of training, with little chance in it."""
        rng = np.random.Generator(np.random.Philox(key=0))
        layers, sampler = len(optimizer.layers), optimizer.sampler
        for stage in range(_STAGES):
            progress = stage / _STAGES
            if optimizer.parts > 1:
                for _ in range(_DRAWS):
                    yield sampler.sample_parts(layers, optimizer.parts, rng, progress)
            else:
                yield from ((each,) for each in sampler.sample_parts(layers, _DRAWS, rng, progress))

    def _components(self, kind: StepKind) -> list[Component]:
        """Return what a step consists of; their operations add up."""
        if self._updates > 1:  # what the updates of a batch reuse belongs to no single one
            return [("step", kind.union, kind.size, kind.turn)]
        ends = [kind.size * part // len(kind.sets) for part in range(len(kind.sets) + 1)]
        sizes = [end - start for start, end in pairwise(ends)]
        passes = [("pass", each, size, 0) for each, size in zip(kind.sets, sizes, strict=True)]
        return [*passes, ("update", kind.union, 0, kind.turn)]

    def _count(self, component: Component, batch: Batch) -> int:
        what, active, size, turn = component
        if what != "pass":
            self._await(turn, batch)
        self._optimizer.zero_grad()
        if isinstance(self._optimizer, DropMuon):
            self._optimizer.activate(active)
        if what == "update":
            _backward(self._model, self._optimizer, batch)
        inputs, targets = batch[0][:size], batch[1][:size]
        with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
            if what == "pass":
                F.cross_entropy(self._model(inputs), targets).backward()
            elif what == "update":
                self._optimizer.step()
            else:
                train_step(self._model, self._optimizer, (inputs, targets), self._updates)
        self._optimizer.zero_grad()
        self._steps += what != "pass"
        return int(counter.get_total_flops())

    def _await(self, turn: int, batch: Batch) -> None:
        """Take steps of the copy until the next one has this turn."""
        if not isinstance(self._optimizer, DropMuon):
            return
        draws = self._optimizer.draws
        if turn == _EVERYONE:
            draws.make_full(self._steps)
        while turn != _EVERYONE and self._steps % draws.turns != turn:
            self.warm_up(batch)


def _backward(
    model: nn.Module, optimizer: Optimizer, batch: Batch, piece: int | None = None
) -> None:
    """Compute the gradients of a step: part by part, or piece by piece."""
    if isinstance(optimizer, DropMuon) and optimizer.parts > 1:
        for inputs, targets in optimizer.split(*batch):
            F.cross_entropy(model(inputs), targets).backward()
        return
    count = len(batch[0])
    pieces = -(-count // (piece or count))
    for inputs, targets in zip(*(each.tensor_split(pieces) for each in batch), strict=True):
        loss = F.cross_entropy(model(inputs), targets)
        (loss * (len(inputs) / count) if pieces > 1 else loss).backward()
