"""What is to be planned for: a model, a loss and some batches; and how to leave them untouched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dropmuon.optimizer import DropMuon
from dropmuon.randomness import RandomState
from dropmuon.samplers import ActiveSet, Full

__all__ = ["Generators", "Loss", "Problem", "activate", "untouched"]

Loss = Callable[[nn.Module, Any], Tensor]
"""The loss of a model on a batch, as a scalar that `backward` can start from."""

_MOST_BATCHES = 64
"""So many batches are kept at most: a loader may be longer than memory."""

_FIXED: dict[str, Any] = {
    "sampler": Full(),
    "total_steps": None,
    "resample_every": 1,
    "updates_per_batch": 1,
    "truncate": True,
    "full_start": True,
    "error_if_nonfinite": False,
}
"""Settings that are the planner's to choose, since it decides which layers are active."""


class Problem:
    """A model, the loss of a batch, and batches to try it on.

    Args:
        model: what is to be trained. Whatever is measured leaves it as it was, see `untouched`.
        loss: a function of the model and a batch; it returns a scalar.
        batches: at least one; the first 64 are taken as a list and used in turn.
    """

    def __init__(self, model: nn.Module, loss: Loss, batches: Iterable[Any]) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be an nn.Module, got {_kind(model)}; give the model")
        if not callable(loss):
            raise ValueError(
                f"loss must be a function of (model, batch), got {_kind(loss)}; "
                "give such as lambda model, batch: cross_entropy(model(batch[0]), batch[1])"
            )
        self.model, self.loss = model, loss
        with untouched(model):
            self.batches = _listed(batches)
            self._check(self.value(0))

    def batch(self, index: int) -> Any:
        """One of the batches, again from the first after the last."""
        return self.batches[index % len(self.batches)]

    def value(self, index: int) -> Tensor:
        """The loss of a batch at the model's present parameters: a forward pass."""
        with torch.enable_grad():
            return self.loss(self.model, self.batch(index))

    def backward(self, optimizer: DropMuon, active: ActiveSet, index: int) -> float:
        """Leave the gradients of the active layers and no others, on one batch; answer the loss."""
        activate(optimizer, active)
        value = self.value(index)
        if value.requires_grad:
            value.backward()
        return float(value.detach())

    @contextmanager
    def prepared(self, settings: Mapping[str, Any]) -> Iterator[DropMuon]:
        """An optimizer with these settings, all layers active; the model as it was afterwards.

        What the planner decides itself (sampler, total_steps, resample_every, updates_per_batch,
        truncate, full_start) is taken out of the settings.
        """
        if not isinstance(settings, Mapping):
            raise ValueError(
                f"optimizer_settings must be a dict, got {_kind(settings)}; "
                "give the arguments of DropMuon after the model, such as {'lr': 0.1}"
            )
        with untouched(self.model):
            yield DropMuon(self.model, **{**settings, **_FIXED})

    def _check(self, value: object) -> None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else _kind(value)
            raise ValueError(
                f"loss must return a scalar tensor, got {shape}; take the mean over the batch"
            )
        if not torch.isfinite(value.detach()).all():
            raise ValueError(
                f"loss must be finite at the start, got {float(value.detach())}; "
                "check the batches, the initial parameters and the precision"
            )
        if not value.requires_grad:
            raise ValueError(
                "loss must depend on a trainable parameter of the model, got one without a "
                "gradient; do not detach it, and call requires_grad_(True) on what is to be trained"
            )


def activate(optimizer: DropMuon, active: ActiveSet) -> None:
    """Make these layers the ones that the next backward and the next step are for."""
    optimizer.zero_grad()
    optimizer._active = active
    optimizer._freeze()


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leave a model and all random generators exactly as found, also after an exception.

    Restored are parameters, buffers, gradients (the same objects), `requires_grad` flags, training
    modes and other plain attributes of modules and parameters, and the states of Python's,
    NumPy's and PyTorch's generators. Inside, parameters begin without gradients. What the loss
    keeps outside of the model is not watched.
    """
    generators = Generators.now()
    modules = [_ModuleState.of(module) for module in model.modules()]
    named = chain(model.parameters(), model.buffers())
    tensors = [_TensorState.of(tensor) for tensor in dict.fromkeys(named)]
    for state in tensors:
        state.tensor.grad = None
    try:
        yield
    finally:
        for module in modules:
            module.restore()
        for state in tensors:
            state.restore()
        generators.restore()


@dataclass(frozen=True, eq=False)
class Generators:
    """The states of the generators of Python, NumPy and PyTorch."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: RandomState

    @classmethod
    def now(cls) -> Generators:
        """Take a snapshot."""
        return cls(random.getstate(), np.random.get_state(legacy=False), RandomState.now())

    def restore(self) -> None:
        """Put the generators back into this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        self.torch.restore()


@dataclass(frozen=True, eq=False)
class _TensorState:
    """A parameter or buffer: where its data is, what it was, and what hangs on it."""

    tensor: Tensor
    data: Tensor
    copy: Tensor
    grad: Tensor | None
    requires_grad: bool
    attributes: dict[str, Any]

    @classmethod
    def of(cls, tensor: Tensor) -> _TensorState:
        data = tensor.data
        attributes = dict(vars(tensor))
        return cls(tensor, data, data.clone(), tensor.grad, tensor.requires_grad, attributes)

    def restore(self) -> None:
        self.tensor.data = self.data
        is_expanded = 0 in self.data.stride()
        if not (is_expanded and torch.equal(self.data, self.copy)):
            self.data.copy_(self.copy)
        self.tensor.grad = self.grad
        self.tensor.requires_grad_(self.requires_grad)
        vars(self.tensor).clear()
        vars(self.tensor).update(self.attributes)


@dataclass(frozen=True, eq=False)
class _ModuleState:
    """The attributes of one module; its registries and sets one level deep."""

    module: nn.Module
    training: bool
    attributes: dict[str, Any]
    contents: dict[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> _ModuleState:
        if isinstance(module, torch.jit.ScriptModule):
            return cls(module, module.training, {}, {})
        attributes = dict(vars(module))
        contents = {k: v.copy() for k, v in attributes.items() if isinstance(v, dict | set)}
        return cls(module, module.training, attributes, contents)

    def restore(self) -> None:
        if self.attributes:
            vars(self.module).clear()
            vars(self.module).update(self.attributes)
        for name, content in self.contents.items():
            self.attributes[name].clear()
            self.attributes[name].update(content)
        if self.module.training != self.training:
            self.module.training = self.training


def _listed(batches: Iterable[Any]) -> list[Any]:
    if isinstance(batches, Tensor | str | Mapping) or not isinstance(batches, Iterable):
        raise ValueError(
            f"batches must be an iterable of batches, got {_kind(batches)}; give a list or a loader"
        )
    found = list(islice(batches, _MOST_BATCHES))
    if not found:
        raise ValueError("batches must not be empty, got none; give at least one batch")
    return found


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
