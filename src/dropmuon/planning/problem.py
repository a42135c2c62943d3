"""The problem to plan for: a model, a loss and some batches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dropmuon.model.isolation import untouched
from dropmuon.optimizer import DropMuon
from dropmuon.samplers import ActiveSet, Full

__all__ = ["Loss", "Problem"]

Loss = Callable[[nn.Module, Any], Tensor]
"""The loss of a model on a batch, as a scalar that `backward` can start from."""

_MOST_BATCHES = 64
"""The default number of batches kept."""

_MOST_BYTES = 2**29
"""The size of the kept batches beyond which no more are drawn."""

_PLANNER_SETTINGS: dict[str, Any] = {
    "sampler": Full(),
    "total_steps": None,
    "resample_every": 1,
    "updates_per_batch": 1,
    "parts": 1,
    "turns": 1,
    "truncate": True,
    "full_start": True,
    "error_if_nonfinite": False,
}
"""The settings that the planner chooses, since it decides which layers are active."""


class Problem:
    """A model, the loss of a batch, and batches to try it on.

    Args:
        model: the model to be trained. Measurements leave it as it was, see `untouched`.
        loss: a function of the model and a batch that returns a scalar.
        batches: at least one batch; the first few are kept in a list and used in turn, up to half
            a gigabyte.
        most_batches: the largest number of batches to keep.
        seconds: the time after which no more batches are drawn.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Iterable[Any],
        most_batches: int = _MOST_BATCHES,
        seconds: float = math.inf,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be an nn.Module, got {_kind(model)}; give the model")
        if not callable(loss):
            raise ValueError(
                f"loss must be a function of (model, batch), got {_kind(loss)}; "
                "for example lambda model, batch: cross_entropy(model(batch[0]), batch[1])"
            )
        _check_initialized(model)
        self.model, self.loss = model, loss
        self._warned = False
        with untouched(model, _generators_of(batches)):
            self.batches = _listed(batches, most_batches, seconds)
            self._check(self.value(0))

    def batch(self, index: int) -> Any:
        """Return one of the batches, starting again with the first after the last."""
        return self.batches[index % len(self.batches)]

    def value(self, index: int) -> Tensor:
        """Return the loss of a batch at the current parameters: one forward pass."""
        with torch.enable_grad():
            return self.loss(self.model, self.batch(index))

    def backward(self, optimizer: DropMuon, active: ActiveSet, index: int) -> float:
        """Compute the gradients of the active layers, and of no others, and return the loss."""
        optimizer.zero_grad()
        optimizer.activate(active)
        value = self.value(index)
        if value.requires_grad:
            value.backward()
        return float(value.detach())

    @contextmanager
    def prepared(self, settings: Mapping[str, Any]) -> Iterator[DropMuon]:
        """Make an optimizer with these settings and all layers active; restore the model on exit.

        Warnings about the settings are given the first time only.
        """
        if not isinstance(settings, Mapping):
            raise ValueError(
                f"optimizer_settings must be a dict, got {_kind(settings)}; "
                "give the arguments of DropMuon after the model, such as {'lr': 0.1}"
            )
        _check_settings(settings)
        with untouched(self.model):
            with warnings.catch_warnings():
                if self._warned:
                    warnings.simplefilter("ignore")
                optimizer = DropMuon(self.model, **{**settings, **_PLANNER_SETTINGS})
            self._warned = True
            yield optimizer

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


def _check_initialized(model: nn.Module) -> None:
    """Reject lazy modules: they change their class at the first call, which cannot be undone."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ValueError(
                f"model must have all its parameters, got a lazy one, {name!r}; "
                "call the model once on an input first"
            )


def _check_settings(settings: Mapping[str, Any]) -> None:
    chosen = sorted(set(settings) & set(_PLANNER_SETTINGS))
    if chosen:
        raise ValueError(
            f"{chosen[0]} is not a setting to plan with, got {settings[chosen[0]]!r}; leave it "
            "out, since the planner decides which layers move"
        )
    rates = {name: settings.get(name) for name in ("lr", "adamw_lr", "adamw_ratio")}
    for name, rate in rates.items():
        if isinstance(rate, int | float) and rate == 0:
            raise ValueError(f"{name} must be positive to plan with, got 0: no layer would move")


def _generators_of(batches: object) -> list[torch.Generator]:
    """Return the generators of a data loader and its sampler."""
    holders = (batches, getattr(batches, "sampler", None))
    found = [getattr(each, "generator", None) for each in holders]
    return [each for each in found if isinstance(each, torch.Generator)]


def _listed(batches: Iterable[Any], most: int, seconds: float) -> list[Any]:
    if isinstance(batches, Tensor | str | Mapping) or not isinstance(batches, Iterable):
        raise ValueError(
            f"batches must be an iterable of batches, got {_kind(batches)}; give a list or a loader"
        )
    found, size, start = [], 0, time.perf_counter()
    for batch in batches:
        found.append(batch)
        size += _bytes(batch)
        if len(found) >= most or size >= _MOST_BYTES or time.perf_counter() - start >= seconds:
            break
    if not found:
        raise ValueError("batches must not be empty, got none; give at least one batch")
    return found


def _bytes(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        return sum(map(_bytes, batch.values()))
    return sum(map(_bytes, batch)) if isinstance(batch, list | tuple) else 0


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
