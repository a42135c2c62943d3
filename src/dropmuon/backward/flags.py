"""What backward skips: an active set applied to a model by its `requires_grad` flags.

Toggling the flags makes autograd do the rest: below the cutoff no node exists and no activation is
saved; above it, an inactive layer passes the gradient on and computes none of its own. If the order
of layers is wrong, savings are lost, but never a gradient.

A parameter that an optimizer froze temporarily carries a mark, and so does the module that owns
it, where that is known. The mark distinguishes this freezing from the user's; a copy of a model
keeps the marks of its modules, so an optimizer made for the copy knows what is to be trained.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from dropmuon.shards import is_sharded

__all__ = ["Flags", "Owner", "wants_training"]

Owner = tuple[nn.Module, str] | None
"""A module and the name of one of its own parameters, where they are known."""

_MARK = "_dropmuon_frozen"
_IDS = itertools.count()


class Flags:
    """The flags of all parameters, in step with the active set and with what the user wants.

    A flag that differs from what was last set was changed by the user, and is what the user wants
    from then on.
    """

    def __init__(self, layers: Sequence[Sequence[tuple[Tensor, Owner]]]) -> None:
        self._id = next(_IDS)
        self._parameters = [parameter for layer in layers for parameter, _ in layer]
        self._owner = [owner for layer in layers for _, owner in layer]
        self._layer = [index for index, layer in enumerate(layers) for _ in layer]
        self._shown = [parameter.requires_grad for parameter in self._parameters]
        self._wanted = list(map(wants_training, self._parameters, self._owner))
        self._num_wanted = [0] * len(layers)
        for layer, wanted in zip(self._layer, self._wanted, strict=True):
            self._num_wanted[layer] += wanted
        self.apply(range(len(layers)))

    def apply(self, active: Iterable[int]) -> None:
        """Make exactly the wanted parameters of the active layers trainable."""
        is_active = [False] * len(self._num_wanted)
        for index in active:
            is_active[index] = True
        shown, layer = self._shown, self._layer
        for i, wanted in enumerate(self._wanted):
            show = wanted and is_active[layer[i]]
            if show != shown[i]:
                self._show(i, show)

    def observe(self) -> bool:
        """Take the flags that the user changed since the last `apply` as what the user wants.

        What another optimizer has frozen since is not; return whether one has.
        """
        shown, is_alone = self._shown, True
        for i, parameter in enumerate(self._parameters):
            flag = parameter.requires_grad
            if flag != shown[i]:
                shown[i] = flag
                if getattr(parameter, _MARK, self._id) != self._id:
                    is_alone = False
                    continue
                self._num_wanted[self._layer[i]] += flag - self._wanted[i]
                self._wanted[i] = flag
                _mark(parameter, self._owner[i], None)
        return not is_alone

    def wants(self, layer: int) -> bool:
        """Return whether the user wants any parameter of a layer trained."""
        return self._num_wanted[layer] > 0

    def froze(self, parameter: Tensor) -> bool:
        """Return whether a parameter is frozen by these flags, temporarily."""
        return getattr(parameter, _MARK, None) == self._id

    def release(self) -> None:
        """Make everything trainable that only these flags froze.

        If nothing is trainable any more, the user froze the whole model: it stays frozen.
        """
        if not any(parameter.requires_grad for parameter in self._parameters):
            return
        for i, parameter in enumerate(self._parameters):
            if self.froze(parameter):
                self._show(i, show=True)

    def release_with(self, holder: object) -> weakref.finalize[[], Any]:
        """Release the flags when `holder` is garbage-collected."""
        finalizer = weakref.finalize(holder, self.release)
        finalizer.atexit = False
        return finalizer

    def __getstate__(self) -> dict[str, Any]:
        """Leave the user's modules out of copies and pickles of an optimizer."""
        return {**self.__dict__, "_owner": [None] * len(self._owner)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._id = next(_IDS)
        for parameter, wanted in zip(self._parameters, self._wanted, strict=True):
            if wanted and not parameter.requires_grad:
                _mark(parameter, None, self._id)

    def _show(self, i: int, show: bool) -> None:
        parameter, owner = self._parameters[i], self._owner[i]
        parameter.requires_grad = show
        if owner is not None and is_sharded(parameter):  # FSDP2 may leave there what it gathered
            present = owner[0]._parameters.get(owner[1])
            if present is not None and present is not parameter:
                present.requires_grad = show
        self._shown[i] = show
        _mark(parameter, self._owner[i], None if show else self._id)


def wants_training(parameter: Tensor, owner: Owner = None) -> bool:
    """Return whether the user wants a parameter trained, even if frozen temporarily."""
    marked = owner is not None and owner[1] in owner[0].__dict__.get(_MARK, ())
    return parameter.requires_grad or hasattr(parameter, _MARK) or marked


def _mark(parameter: Tensor, owner: Owner, by: int | None) -> None:
    """Mark a parameter and its owner as frozen by someone; None removes the mark."""
    frozen = by is not None
    if frozen:
        setattr(parameter, _MARK, by)
    elif hasattr(parameter, _MARK):
        delattr(parameter, _MARK)
    if owner is None:
        return
    module, name = owner
    names: set[str] = module.__dict__.setdefault(_MARK, set())
    if frozen:
        names.add(name)
    else:
        names.discard(name)
    if not names:
        del module.__dict__[_MARK]
