"""Methods by name: what `dropmuon compare --methods` accepts, and the optimizer of each."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from dropmuon import presets
from dropmuon.checks import unknown_name
from dropmuon.lab.models import item_of
from dropmuon.lab.torch_muon import TorchMuon
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

__all__ = ["BASELINES", "Method", "Optimizer", "Shared", "method_named", "method_names"]

Optimizer = torch.optim.Optimizer | TorchMuon

BASELINES = ("full", "muon")
"""The baseline of other methods where it takes part: the method, and its old name."""

_OLD_NAMES = {"muon": "full"}
_SCHEDULES = ("uniform", "linear", "quadratic", "exponential", "epoch-shift")
_SIZED = {"nice": Nice, "submodel": Submodel}
_FIXED_NAMES = (
    "full",
    *(f"drop-muon:{name}" for name in _SCHEDULES),
    "drop-muon:planned",
    "drop-muon:random-subset",
    "torch-muon",
    "scion",
    "adamw",
    "sgd",
)
_DROP_MUON_OPTIONS = frozenset(
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
    "torch-muon": frozenset(
        {"adamw_lr", "betas", "momentum", "nesterov", "weight_decay", "adjust_lr_fn"}
    ),
}
_USUAL_LR = {"adamw": 1e-3, "sgd": 0.05, "scion": 0.02, "torch-muon": 0.02}
"""Learning rates of methods that do not share that of Drop-Muon; a config or `--lr NAME=VALUE`
sets others."""


@dataclass(frozen=True)
class Shared:
    """What all methods of a comparison share on one seed, unless they have a value of their own."""

    lr: float
    momentum: float
    policy: str
    total_steps: int
    seed: int


@dataclass(frozen=True)
class Method:
    """A name, the known method behind it (`base`), and its own options."""

    name: str
    base: str
    options: Mapping[str, Any]

    @property
    def needs_plan(self) -> bool:
        """Whether a sampler has to be planned for the model first."""
        return self.base == "drop-muon:planned"

    @property
    def updates_per_batch(self) -> int:
        """How often each batch is used."""
        return int(self.options.get("updates_per_batch", 1))

    def lr(self, shared: float) -> float:
        """Return its own learning rate, else the usual one of its base, else the shared one."""
        return float(self.options.get("lr", _USUAL_LR.get(self.base, shared)))

    def settings(self, shared: Shared) -> dict[str, Any]:
        """Return what the method runs with: its options, and the shared settings that it uses."""
        own = {key: value for key, value in self.options.items() if key != "base"}
        used = {}
        if self.base == "full" or self.base.startswith("drop-muon:"):
            used = {"momentum": shared.momentum, "policy": shared.policy}
        return {"lr": self.lr(shared.lr), **used, **own}

    def optimizer(
        self, model: nn.Module, shared: Shared, planned: Sampler | None = None
    ) -> Optimizer:
        """Make the optimizer for a model of the lab."""
        lr = self.lr(shared.lr)
        own = {k: v for k, v in self.options.items() if k not in {"lr", "base", "alpha"}}
        if self.base == "adamw":
            return torch.optim.AdamW(model.parameters(), lr, **own)
        if self.base == "sgd":
            return torch.optim.SGD(model.parameters(), lr, **{"momentum": 0.9, **own})
        if self.base == "torch-muon":
            return TorchMuon(model, lr, **own)
        common = {"by": item_of, "total_steps": shared.total_steps, "seed": shared.seed}
        if self.base == "scion":
            return presets.scion(model, lr, **{**common, **own})
        chosen = {"momentum": shared.momentum, "policy": shared.policy, **common, **own}
        return DropMuon(model, lr, sampler=self._sampler(planned), **chosen)

    def _sampler(self, planned: Sampler | None) -> Sampler:
        if self.base == "full":
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
    """Return the method of this name; errors list the names and options there are.

    Any name is accepted whose options name a `base`. `muon` is an old name of `full`: the method
    keeps it as its name, so that runs that began with it can be resumed.
    """
    options = dict(options or {})
    base = str(options.get("base", name))
    if base in _OLD_NAMES:
        _warn_of_old_name(base)
        base = _OLD_NAMES[base]
    if base == "drop-muon:adaptive":
        raise ValueError(
            f"method {base!r} does not exist yet; drop-muon:epoch-shift changes its distribution "
            "with progress"
        )
    if base not in _FIXED_NAMES and _sized(base.removeprefix("drop-muon:")) is None:
        raise unknown_name("method", base, method_names())
    _check_options(name, base, options)
    return Method(name, base, options)


def method_names() -> list[str]:
    """Return all names, with TAU where a number goes."""
    return [*_FIXED_NAMES, *(f"drop-muon:{kind}-TAU" for kind in _SIZED)]


def _sized(kind: str) -> Sampler | None:
    """Return `nice-2` or `submodel-2` as a sampler; None for anything else."""
    found = re.fullmatch(r"(nice|submodel)-(\d+)", kind)
    if found is None:
        return None
    make: Callable[[int], Sampler] = _SIZED[found[1]]
    return make(int(found[2]))


def _check_options(name: str, base: str, options: Mapping[str, Any]) -> None:
    accepted = {"lr", "base"} | set(_OPTIONS.get(base, _DROP_MUON_OPTIONS))
    if base == "drop-muon:epoch-shift":
        accepted.add("alpha")
    for option in options:
        if option not in accepted:
            raise unknown_name(f"option of method {name!r}", str(option), accepted)
    for key in {"lr", "adamw_lr"} & set(options):
        lr = options[key]
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not lr > 0:
            raise ValueError(f"{key} of method {name!r} must be a positive number, got {lr!r}")


@cache
def _warn_of_old_name(old: str) -> None:
    """Log once per process what a method is called now; without a handler, on stderr."""
    logging.getLogger(__name__).warning(
        "dropmuon: method %r is an old name, accepted until the next release; use %r instead, or "
        "'torch-muon' for torch.optim.Muon",
        old,
        _OLD_NAMES[old],
    )
