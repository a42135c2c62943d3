"""Operations of training steps: counted once per kind of step, on a twin, outside of the clock."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon.optimizer import DropMuon
from dropmuon.planning.timing import EXTRA_OPERATIONS
from dropmuon.samplers import ActiveSet

__all__ = ["Batch", "Counts", "Meter", "train_step"]

Batch = tuple[Tensor, Tensor]
Counts = dict[tuple[ActiveSet, int], int]
"""Operations by the layers that move and the size of the batch."""


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, updates: int = 1
) -> None:
    """One step of the loop that a user has: loss, backward, step, zero_grad."""
    inputs, targets = batch

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    if updates > 1:
        optimizer.step(closure)  # type: ignore[arg-type]
    else:
        closure()
        optimizer.step()
    optimizer.zero_grad()


class Meter:
    """Counts the operations of a step by the layers that move in it and the shape of its batch.

    A copy of the model takes the counted steps, so that neither the trained model nor its clock
    sees them. Element-wise operations are not counted, as in `torch.utils.flop_counter`. What is
    `known` is shared by the trials of a method.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        updates: int,
        known: Counts | None = None,
    ) -> None:
        self._model = copy.deepcopy(model)
        self._optimizer = make_optimizer(self._model)
        self._updates = updates
        self._warm = False
        self._known: Counts = {} if known is None else known

    def warm_up(self, batch: Batch) -> None:
        """Take a step on a batch like this one, so that the first one on the clock is not cold."""
        with torch.random.fork_rng(devices=[]):
            train_step(self._model, self._optimizer, batch, self._updates)
        self._warm = True

    def operations(self, active: ActiveSet, batch: Batch) -> int:
        """Operations of one step that moves these layers on a batch like this one."""
        key = active, len(batch[0])
        if key not in self._known:
            if not self._warm:
                self.warm_up(batch)
            with torch.random.fork_rng(devices=[]):
                self._known[key] = self._count(active, batch)
        return self._known[key]

    def _count(self, active: ActiveSet, batch: Batch) -> int:
        if isinstance(self._optimizer, DropMuon):
            self._optimizer.zero_grad()
            self._optimizer.activate(active)
        with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
            train_step(self._model, self._optimizer, batch, self._updates)
        return int(counter.get_total_flops())
