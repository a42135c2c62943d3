"""A meter of the tensors that are alive, and a model that reads it in the middle of backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = ["Live", "Stack"]


class Live(TorchDispatchMode):
    """Knows the storages that operators have made since it was entered, as long as they live."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def bytes(self) -> int:
        return sum(size for reference, size in self._made.values() if not reference.expired())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(each).cdata for each in tree_iter((args, kwargs)) if _is_tensor(each)}
        found = func(*args, **(kwargs or {}))
        for each in filter(_is_tensor, tree_iter(found)):
            reference = _storage(each)
            if reference.cdata not in given:
                self._made.setdefault(reference.cdata, (reference, each.untyped_storage().nbytes()))
        return found


class _Probe(torch.autograd.Function):
    """Calls back in backward, when what it saved has been unpacked and nothing else is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor], None]) -> Tensor:
        ctx.read = read
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = ctx.saved_tensors
        ctx.read(gradient)
        del saved
        return gradient, None


class Block(nn.Module):
    def __init__(self, width: int, dropout: float, read: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.dropout, self.read = nn.Dropout(dropout), read

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.outer(self.dropout(torch.tanh(self.inner(x))))
        return _Probe.apply(found, self.read)


class Stack(nn.Module):
    """Blocks between two layers; the last operator of each block reads a meter in backward."""

    def __init__(self, blocks: int, width: int = 8, outputs: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.meter: Live | None = None
        self.readings: list[int] = []
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, dropout, self._read) for _ in range(blocks))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return torch.tanh(self.last(x))

    def held_at_most(self, x: Tensor) -> int:
        """Return what a pass holds for backward, at most, beside all gradients."""
        self.readings = []
        with Live() as self.meter:
            loss = self(x).sum()
            self.readings.append(self.meter.bytes - loss.nbytes)
            loss.backward()
        self.meter = None
        return max(self.readings)

    def _read(self, gradient: Tensor) -> None:
        if self.meter is not None:
            found = (parameter.grad for parameter in self.parameters())
            own = sum(each.nbytes for each in found if each is not None)
            self.readings.append(self.meter.bytes - own - gradient.nbytes)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
