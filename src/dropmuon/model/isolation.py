"""Isolation of experiments on a model: it and all generators are left exactly as they were."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dropmuon.backward.rng import RandomState

__all__ = ["Generators", "untouched"]


@contextmanager
def untouched(
    model: nn.Module, others: Iterable[torch.Generator] = (), *, parameters: bool = True
) -> Iterator[None]:
    """Restore a model and all random number generators on exit, also after an exception.

    This covers parameters, buffers, gradients (the same objects), `requires_grad` flags, training
    modes and other attributes of modules and parameters: tensors, generators and, however deep,
    the contents of dicts, lists, sets and deques; and the states of the generators of Python, NumPy
    and PyTorch and of `others`. Parameters have no gradients at the start of the block. The
    contents of other objects, and what the loss keeps outside the model, are not restored.

    Args:
        model: the model to restore.
        others: more generators, such as that of a data loader.
        parameters: False leaves parameters and their gradients alone, which saves the memory of a
            copy, for blocks that cannot change them.
    """
    generators = Generators.now()
    modules = [_ModuleState.of(module) for module in model.modules()]
    held = _Held.by([*(state.attributes for state in modules), *others])
    left_alone = set() if parameters else {id(each) for each in model.parameters()}
    tensors = chain(model.parameters(), model.buffers(), held.tensors)
    distinct = {id(each): each for each in tensors if id(each) not in left_alone}
    kept = [_TensorState.of(tensor) for tensor in distinct.values()]
    if parameters:
        for parameter in model.parameters():
            parameter.grad = None
    try:
        yield
    finally:
        for module in modules:
            module.restore()
        held.restore()
        for state in kept:
            state.restore()
        generators.restore()


@dataclass(frozen=True, eq=False)
class Generators:
    """The states of the random number generators of Python, NumPy and PyTorch."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: RandomState

    @classmethod
    def now(cls) -> Generators:
        """Take a snapshot."""
        return cls(random.getstate(), np.random.get_state(legacy=False), RandomState.now())

    def restore(self) -> None:
        """Restore the generators to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        self.torch.restore()


@dataclass(frozen=True, eq=False)
class _TensorState:
    """A tensor: its storage, a copy of its values, its gradient, flag and attributes."""

    tensor: Tensor
    data: Tensor
    copy: Tensor
    grad: Tensor | None
    requires_grad: bool
    attributes: dict[str, Any]

    @classmethod
    def of(cls, tensor: Tensor) -> _TensorState:
        data = tensor.data
        grad = tensor.grad if tensor.is_leaf else None
        return cls(tensor, data, data.clone(), grad, tensor.requires_grad, dict(vars(tensor)))

    def restore(self) -> None:
        self.tensor.data = self.data
        is_expanded = 0 in self.data.stride()
        if not (is_expanded and torch.equal(self.data, self.copy)):
            self.data.copy_(self.copy)
        if self.tensor.is_leaf:
            self.tensor.grad = self.grad
            self.tensor.requires_grad_(self.requires_grad)
        vars(self.tensor).clear()
        vars(self.tensor).update(self.attributes)


@dataclass(frozen=True, eq=False)
class _ModuleState:
    """The attributes of one module."""

    module: nn.Module
    training: bool
    attributes: dict[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> _ModuleState:
        scripted = isinstance(module, torch.jit.ScriptModule)
        return cls(module, module.training, {} if scripted else dict(vars(module)))

    def restore(self) -> None:
        if self.attributes:
            vars(self.module).clear()
            vars(self.module).update(self.attributes)
        if self.module.training != self.training:
            self.module.training = self.training


@dataclass(frozen=True, eq=False)
class _Held:
    """The contents of containers, and the tensors and generators in them."""

    contents: list[tuple[Any, list[Any]]]
    tensors: list[Tensor]
    generators: list[tuple[torch.Generator, Tensor]]

    @classmethod
    def by(cls, roots: Iterable[Any]) -> _Held:
        found, seen, waiting = cls([], [], []), set[int](), list(roots)
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Tensor):
                found.tensors.append(value)
            elif isinstance(value, torch.Generator):
                found.generators.append((value, value.get_state()))
            elif isinstance(value, dict):
                found.contents.append((value, list(value.items())))
                waiting += value.values()
            elif isinstance(value, list | set | deque):
                found.contents.append((value, list(value)))
                waiting += value
            elif isinstance(value, tuple):
                waiting += value
        return found

    def restore(self) -> None:
        for container, content in self.contents:
            container.clear()
            if isinstance(container, dict | set):
                container.update(content)
            else:
                container.extend(content)
        for generator, state in self.generators:
            generator.set_state(state)
