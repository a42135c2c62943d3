"""Methods by name: what `dropmuon compare --methods` accepts, and the optimizers they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dropmuon import presets
from dropmuon.checks import unknown_name
from dropmuon.lab.models import item_of
from dropmuon.optimizer import DropMuon
from dropmuon.samplers import (
    Full,
    Nice,
    Progressive,
    RandomSubset,
    Sampler,
    Submodel,
    by_name,
    epoch_shift,
)

__all__ = ["Method", "Setting", "method_named", "method_names"]

_SCHEDULES = ("uniform", "linear", "quadratic", "exponential", "epoch-shift")
_SIZED = {"nice": Nice, "submodel": Submodel}
_DROP_OPTIONS = frozenset(
    {
        "momentum",
        "nesterov",
        "weight_decay",
        "resample_every",
        "updates_per_batch",
        "truncate",
        "policy",
        "orthogonalize",
        "adamw_lr",
    }
)
_OPTIONS = {
    "adamw": frozenset({"betas", "eps", "weight_decay"}),
    "sgd": frozenset({"momentum", "nesterov", "weight_decay"}),
}
_USUAL_LR = {"adamw": 1e-3, "sgd": 0.05, "scion": 0.02}
"""Learning rates of methods that do not share Muon's; a config or `--lr NAME=VALUE` sets others."""


@dataclass(frozen=True)
class Setting:
    """What a method is used on: shared by all methods of a comparison."""

    lr: float
    momentum: float
    policy: str
    total_steps: int
    seed: int


@dataclass(frozen=True)
class Method:
    """A name, the known method that it is, and options of its own."""

    name: str
    base: str
    options: Mapping[str, Any]

    @property
    def needs_plan(self) -> bool:
        """Whether a sampler is to be planned for the model first."""
        return self.base == "drop-muon:planned"

    @property
    def updates_per_batch(self) -> int:
        """How often each batch is used."""
        return int(self.options.get("updates_per_batch", 1))

    def lr(self, shared: float) -> float:
        """The learning rate: its own, the usual one of a method unlike Muon, or the shared one."""
        return float(self.options.get("lr", _USUAL_LR.get(self.base, shared)))

    def settings(self, setting: Setting) -> dict[str, Any]:
        """What the method really runs with: its options, and the shared settings that it heeds."""
        own = {key: value for key, value in self.options.items() if key != "base"}
        heeded = {}
        if self.base == "muon" or self.base.startswith("drop-muon:"):
            heeded = {"momentum": setting.momentum, "policy": setting.policy}
        return {"lr": self.lr(setting.lr), **heeded, **own}

    def optimizer(
        self, model: nn.Module, setting: Setting, planned: Sampler | None = None
    ) -> torch.optim.Optimizer:
        """Make the optimizer for a model of the lab."""
        lr = self.lr(setting.lr)
        own = {k: v for k, v in self.options.items() if k not in {"lr", "base", "alpha"}}
        if self.base == "adamw":
            return torch.optim.AdamW(model.parameters(), lr, **own)
        if self.base == "sgd":
            return torch.optim.SGD(model.parameters(), lr, **{"momentum": 0.9, **own})
        shared = {"by": item_of, "total_steps": setting.total_steps, "seed": setting.seed}
        if self.base == "scion":
            return presets.scion(model, lr, **{**shared, **own})
        chosen = {"momentum": setting.momentum, "policy": setting.policy, **shared, **own}
        return DropMuon(model, lr, sampler=self._sampler(planned), **chosen)

    def _sampler(self, planned: Sampler | None) -> Sampler:
        if self.base == "muon":
            return Full()
        kind = self.base.partition(":")[2]
        if kind == "planned":
            if planned is None:
                raise ValueError(f"method {self.name!r} needs a plan, got none; make one first")
            return planned
        if kind == "random-subset":
            return RandomSubset()
        if kind == "epoch-shift":
            return Progressive(epoch_shift(float(self.options.get("alpha", 0.5))))
        sized = _sized(kind)
        return by_name(kind) if sized is None else sized


def method_named(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return the method of this name, or say which names and options there are.

    A name of the user's own is accepted where its options name a `base`.
    """
    options = dict(options or {})
    base = str(options.get("base", name))
    if base == "drop-muon:adaptive":
        raise ValueError(
            f"method {base!r} is not there yet; drop-muon:epoch-shift changes its distribution "
            "with progress"
        )
    if base not in _FIXED_NAMES and _sized(base.removeprefix("drop-muon:")) is None:
        raise unknown_name("method", base, method_names())
    _check_options(name, base, options)
    return Method(name, base, options)


def method_names() -> list[str]:
    """All names, with TAU where a number goes."""
    return [*_FIXED_NAMES, *(f"drop-muon:{kind}-TAU" for kind in _SIZED)]


_FIXED_NAMES = (
    "muon",
    *(f"drop-muon:{name}" for name in _SCHEDULES),
    "drop-muon:planned",
    "drop-muon:random-subset",
    "scion",
    "adamw",
    "sgd",
)


def _sized(kind: str) -> Sampler | None:
    """`nice-2` and `submodel-2` as samplers; None for anything else."""
    found = re.fullmatch(r"(nice|submodel)-(\d+)", kind)
    if found is None:
        return None
    make: Callable[[int], Sampler] = _SIZED[found[1]]
    return make(int(found[2]))


def _check_options(name: str, base: str, options: Mapping[str, Any]) -> None:
    accepted = {"lr", "base"} | set(_OPTIONS.get(base, _DROP_OPTIONS))
    if base == "drop-muon:epoch-shift":
        accepted.add("alpha")
    for option in options:
        if option not in accepted:
            raise unknown_name(f"option of method {name!r}", str(option), accepted)
    lr = options.get("lr", 1.0)
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not lr > 0:
        raise ValueError(f"lr of method {name!r} must be a positive number, got {lr!r}")
