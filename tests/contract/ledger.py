"""Where training should be, kept beside it by other means."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor, nn

from dropmuon import reference
from tests.models import Batch, Loss, layers_of


class Ledger:
    """A point that moves by the reference's LMO, along gradients of a model that nobody freezes."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        norm: Callable[[Tensor], str],
        *,
        lr: float,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> None:
        self._model, self._loss, self._norm = copy.deepcopy(model), loss, norm
        self._lr, self._momentum, self._nesterov = lr, momentum, nesterov
        self._decay = lr * weight_decay
        self._momenta: dict[Tensor, Tensor] = {}
        self._sums: dict[Tensor, tuple[Tensor, int]] = {}

    @property
    def layers(self) -> list[list[nn.Parameter]]:
        return layers_of(self._model)

    def add(self, batch: Batch, active: Iterable[int]) -> None:
        """Add a part: its gradients count for the layers that were active in it."""
        flat = [p for layer in self.layers for p in layer]
        found = dict(
            zip(flat, torch.autograd.grad(self._loss(self._model, batch), flat), strict=True)
        )
        for i in active:
            for p in self.layers[i]:
                total, count = self._sums.get(p, (torch.zeros_like(p), 0))
                self._sums[p] = (total + found[p], count + 1)

    @torch.no_grad()
    def step(self, still: Collection[int]) -> None:
        """Move all layers that were active in any part, but those that are to be still."""
        for i, layer in enumerate(self.layers):
            for p in layer:
                if i in still or p not in self._sums:
                    continue
                total, count = self._sums[p]
                g, mu = total / count, self._momentum
                m = mu * self._momenta[p] + (1 - mu) * g if p in self._momenta else g
                self._momenta[p] = m
                along = (1 - mu) * g + mu * m if self._nesterov else m
                p.copy_((1 - self._decay) * p + reference.lmo(self._norm(p), along, self._lr))
        self._sums.clear()
