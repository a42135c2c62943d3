"""What autograd sees of a parameter that FSDP2 has sharded: another tensor, gathered for a forward.

Gradients arrive at that tensor and are reduced to the shard later, maybe after several backwards.
So hooks of parts belong to it. It is made in the first forward pass, and kept: it is found in the
module that owns the parameter, when the module that gathers it begins its forward.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dropmuon.shards import is_sharded

__all__ = ["Place", "watch_gathered"]

Place = tuple[Tensor, nn.Module, str]
"""A parameter, the module that owns it, and its name there."""

Found = Callable[[Tensor, Tensor], None]
"""What to do with a parameter and the tensor that stands for it."""


def watch_gathered(
    model: nn.Module, places: Iterable[Place], found: Found
) -> tuple[list[RemovableHandle], set[Tensor]]:
    """Call `found` with every sharded parameter and what is gathered for it, once per tensor.

    Return the handles of the hooks that look for them, and the parameters that FSDP2 gathers.
    """
    gatherer = dict(_gatherers(model))
    managed: dict[nn.Module, list[Place]] = {}
    for place in places:
        by = gatherer.get(place[1])
        if by is not None and is_sharded(place[0]):
            managed.setdefault(by, []).append(place)
    handles = [
        module.register_forward_pre_hook(_Look(own, found)) for module, own in managed.items()
    ]
    return handles, {parameter for own in managed.values() for parameter, _, _ in own}


def _gatherers(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield modules with the module of FSDP2 that gathers their parameters."""
    made = sys.modules.get("torch.distributed.fsdp")
    if made is None:
        return
    todo: list[tuple[nn.Module, nn.Module | None]] = [(model, None)]
    while todo:
        module, above = todo.pop()
        by = module if isinstance(module, made.FSDPModule) else above
        if by is not None:
            yield module, by
        todo += [(child, by) for child in module.children()]


class _Look:
    """A hook at the start of a forward; copies and pickles of a model get one that does nothing."""

    def __init__(self, places: Iterable[Place] = (), found: Found | None = None) -> None:
        self._places, self._found = list(places), found
        self._known: dict[Tensor, weakref.ref[Tensor]] = {}

    def __call__(self, module: nn.Module, args: Any) -> None:
        for parameter, owner, name in self._places:
            present = owner._parameters.get(name)
            known = self._known.get(parameter)
            if present is None or present is parameter or (known and known() is present):
                continue
            self._known[parameter] = weakref.ref(present)
            if self._found is not None:
                self._found(parameter, present)

    def __reduce__(self) -> tuple[type[_Look], tuple[()]]:
        return _Look, ()
