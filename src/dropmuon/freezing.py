"""What backward skips: an active set applied to a model by its `requires_grad` flags.

Toggling the flags, and nothing else, makes autograd do the rest: below the cutoff no node exists
and no activation is saved; above it, an inactive layer passes the gradient on and computes none of
its own. If the order of layers is wrong, savings are lost and never a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from dropmuon.layers import FROZEN_MARK, wants_training

__all__ = ["Freezer"]


class Freezer:
    """Holds the flags of all parameters in step with the active set, and the user's wishes apart.

    A flag that differs from what the freezer last showed was changed by the user, and is the
    user's wish from then on.
    """

    def __init__(self, layers: Sequence[Sequence[Tensor]]) -> None:
        self._parameters = [p for members in layers for p in members]
        self._layer = [index for index, members in enumerate(layers) for _ in members]
        self._shown = [p.requires_grad for p in self._parameters]
        self._wanted = [wants_training(p) for p in self._parameters]
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
                _mark(parameter, frozen=False)

    def wants(self, layer: int) -> bool:
        """Whether any parameter of a layer is one the user wants trained."""
        return self._num_wanted[layer] > 0

    def release(self) -> None:
        """Give all flags back as the user wants them."""
        self.apply(range(len(self._num_wanted)))

    def _show(self, i: int, show: bool) -> None:
        parameter = self._parameters[i]
        parameter.requires_grad = show
        self._shown[i] = show
        _mark(parameter, frozen=not show)


def _mark(parameter: Tensor, *, frozen: bool) -> None:
    if frozen:
        setattr(parameter, FROZEN_MARK, True)
    elif hasattr(parameter, FROZEN_MARK):
        delattr(parameter, FROZEN_MARK)
