"""Savings that are lost without an error: gradients that start below the cutoff.

Below the cutoff every parameter is frozen, so nothing there needs a gradient, and backward stops.
Two things keep it alive, and neither changes a result: something else sets `requires_grad` on an
activation, as transformers does for gradient checkpointing; or the order of layers is not that of
execution, and an active layer runs first. Both show in a forward pass, as the input of a frozen
module that needs a gradient. Where all sets of a size are equally likely, no order saves more than
another, and only the first is told.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter
from torch.utils.hooks import RemovableHandle

from dropmuon.checks import warn
from dropmuon.samplers import Sampler

__all__ = ["StrayGradients", "order_matters"]

_PASSES = 8
"""The number of truncated steps that are watched."""


class StrayGradients:
    """Watches the first truncated forward passes, and warns of a gradient below the cutoff.

    `modules` have a name and the index of their layer. Only the first call of a module in a pass
    counts: one that is used again above the cutoff needs a gradient there. `ordered` says that the
    order of layers decides how much is saved.
    """

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module, int]], *, ordered: bool = True
    ) -> None:
        self._left, self._cutoff, self._ordered = _PASSES, 0, ordered
        self._called: dict[str, int] = {}
        me = weakref.ref(self)
        self._handles = [
            module.register_forward_hook(_Look(me, name, layer), with_kwargs=True)
            for name, module, layer in modules
            if not isinstance(module, torch.jit.ScriptModule)  # has no hooks
        ]
        weakref.finalize(self, _remove, self._handles).atexit = False

    def begin(self, cutoff: int) -> None:
        """Start a pass with this cutoff; after enough truncated ones, stop watching."""
        if not self._handles:
            return
        self._left -= self._cutoff > 0 and len(self._called) > 0
        self._cutoff, self._called = cutoff, {}
        if self._left == 0:
            self.close()

    def see(self, name: str, module: nn.Module, layer: int, inputs: Any) -> None:
        """Look at the inputs of a module that was called.

        If its own parameters are not frozen, someone else has taken over the flags.
        """
        if not torch.is_grad_enabled() or name in self._called:
            return
        is_below = layer < self._cutoff
        if is_below and any(map(_needs_gradient, module.parameters(recurse=False))):
            self.close()
        elif is_below and any(map(_needs_gradient, tree_iter(inputs))):
            above = next((n for n, at in self._called.items() if at >= self._cutoff), None)
            if above is None or self._ordered:
                warn(_by_a_hook(name) if above is None else _by_order(name, above))
                self.close()
        self._called[name] = layer

    def close(self) -> None:
        """Stop watching."""
        _remove(self._handles)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hooks: a copy watches nothing."""
        return {**self.__dict__, "_handles": []}


def order_matters(sampler: Sampler, num_layers: int) -> bool:
    """Return whether layers at other places would be drawn in other sets.

    They would not where all sets of a size are equally likely, as single layers or any two of them.
    Layers of a partition may be drawn equally often, but a block of neighbours has a cutoff, and
    one that is scattered over the model saves less.
    """
    return not all(_is_blind(sampler, num_layers, progress) for progress in (0.0, 0.5, 1.0))


def _is_blind(sampler: Sampler, num_layers: int, progress: float) -> bool:
    """Return whether a sampler treats all layers alike, so far as its sets can be listed."""
    moves = sampler.marginals(num_layers, progress)[1]
    if moves[0] >= 1 or not np.allclose(moves, moves[0]):
        return False
    try:
        sets = sampler.distribution(num_layers, progress)
    except (NotImplementedError, ValueError):  # too many to list
        return True
    shares: dict[int, list[float]] = {}
    for layers, share in sets.items():
        shares.setdefault(len(layers), []).append(share)
    return all(
        len(found) == math.comb(num_layers, size) and np.allclose(found, found[0])
        for size, found in shares.items()
    )


class _Look:
    """A forward hook; copies and pickles of a model get one that sees nothing."""

    def __init__(
        self, strays: weakref.ref[StrayGradients] | None = None, name: str = "", layer: int = 0
    ) -> None:
        self._strays, self._name, self._layer = strays, name, layer

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        strays = self._strays() if self._strays is not None else None
        if strays is not None and not torch.compiler.is_compiling():
            strays.see(self._name, module, self._layer, (args, kwargs))

    def __reduce__(self) -> tuple[type[_Look], tuple[()]]:
        return _Look, ()


def _remove(handles: list[RemovableHandle]) -> None:
    while handles:
        handles.pop().remove()


def _needs_gradient(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _by_a_hook(name: str) -> str:
    return (
        f"backward goes on below its cutoff, and saves less than it could: {name!r} and all before "
        "it are frozen, but its input needs a gradient. That comes from an input of the model, "
        "from parameters that the optimizer does not have, or from a hook, as transformers adds "
        'for gradient checkpointing: use gradient_checkpointing_kwargs={"use_reentrant": False} '
        "and call model.disable_input_require_grads()"
    )


def _by_order(name: str, above: str) -> str:
    return (
        f"backward goes on below its cutoff, and saves less than it could: {name!r} runs after "
        f"{above!r}, but its layer comes before it; pass example=, an input of the model, to order "
        "layers by execution"
    )
