"""What backward skips: an active set applied to a model by its `requires_grad` flags.

Toggling the flags, and nothing else, makes autograd do the rest: below the cutoff no node exists
and no activation is saved; above it, an inactive layer passes the gradient on and computes none of
its own. If the order of layers is wrong, savings are lost and never a gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dropmuon.backward.marks import Owner, mark, marked_by, wants_training

__all__ = ["Freezer"]

_IDS = itertools.count()


class Freezer:
    """Holds the flags of all parameters in step with the active set, and the user's wishes apart.

    A flag that differs from what the freezer last showed was changed by the user, and is the
    user's wish from then on.
    """

    def __init__(
        self, layers: Sequence[Sequence[Tensor]], owners: Mapping[Tensor, Owner] | None = None
    ) -> None:
        self._parameters = [p for members in layers for p in members]
        self._id = next(_IDS)
        self._owner = [(owners or {}).get(p) for p in self._parameters]
        self._layer = [index for index, members in enumerate(layers) for _ in members]
        self._shown = [p.requires_grad for p in self._parameters]
        self._wanted = list(map(wants_training, self._parameters, self._owner))
        self._num_wanted = [0] * len(layers)
        for layer, wanted in zip(self._layer, self._wanted, strict=True):
            self._num_wanted[layer] += wanted
        self.apply(range(len(layers)))

    def apply(self, active: Iterable[int]) -> None:
        """Make exactly the wanted parameters of the active layers trainable."""
        self.observe()
        is_active = [False] * len(self._num_wanted)
        for index in active:
            is_active[index] = True
        shown, layer = self._shown, self._layer
        for i, wanted in enumerate(self._wanted):
            show = wanted and is_active[layer[i]]
            if show != shown[i]:
                self._show(i, show)

    def observe(self) -> None:
        """Take the flags that the user changed since `apply` as what the user wants."""
        shown = self._shown
        for i, parameter in enumerate(self._parameters):
            flag = parameter.requires_grad
            if flag != shown[i]:
                shown[i] = flag
                self._num_wanted[self._layer[i]] += flag - self._wanted[i]
                self._wanted[i] = flag
                mark(parameter, self._owner[i], None)

    def wants(self, layer: int) -> bool:
        """Whether any parameter of a layer is one the user wants trained."""
        return self._num_wanted[layer] > 0

    def release(self) -> None:
        """Give back as the user wants them the flags that are still as this freezer showed them.

        If all that was shown as trainable is frozen now, the user froze the whole model: it stays.
        """
        if not any(p.requires_grad for p in self._parameters):
            return
        for i, parameter in enumerate(self._parameters):
            if marked_by(parameter) == self._id:
                self._show(i, show=True)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle of an optimizer does not take the user's modules along."""
        return {**self.__dict__, "_owner": [None] * len(self._owner)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._id = next(_IDS)
        for parameter, wanted in zip(self._parameters, self._wanted, strict=True):
            if wanted and not parameter.requires_grad:
                mark(parameter, None, self._id)

    def _show(self, i: int, show: bool) -> None:
        parameter = self._parameters[i]
        parameter.requires_grad = show
        self._shown[i] = show
        mark(parameter, self._owner[i], None if show else self._id)
