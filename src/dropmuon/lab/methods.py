"""Methods by name: what `dropmuon compare --methods` accepts, and the optimizer of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from dropmuon import presets
from dropmuon.checks import unknown_name, whole_number
from dropmuon.lab.kinds import PLANNED, PREFIX, kind_named, kind_names
from dropmuon.lab.models import item_of
from dropmuon.lab.settings import SCHEDULE_OPTIONS, RateSchedule
from dropmuon.lab.torch_muon import TorchMuon
from dropmuon.optimizer import DropMuon
from dropmuon.samplers import Full, Sampler

__all__ = [
    "BASELINES",
    "LARGEST_LR",
    "Method",
    "Optimizer",
    "Shared",
    "drawing",
    "method_named",
    "method_names",
]

Optimizer = torch.optim.Optimizer | TorchMuon

BASELINES = ("full", "muon")
"""The baseline of other methods where it takes part: the method, and its old name."""

LARGEST_LR = 1e6
"""Learning rates beyond this overflow; none is of use."""

_OLD_NAMES = {"muon": "full"}
_OTHERS = ("torch-muon", "scion", "adamw", "sgd")
_DROP_MUON_OPTIONS = frozenset(
    {
        "momentum",
        "nesterov",
        "weight_decay",
        "resample_every",
        "updates_per_batch",
        "parts",
        "turns",
        "truncate",
        "policy",
        "orthogonalize",
        "adamw_lr",
    }
)
_OPTIONS = {
    "adamw": frozenset({"momentum", "betas", "eps", "weight_decay"}),
    "sgd": frozenset({"momentum", "nesterov", "weight_decay"}),
    "torch-muon": frozenset(
        {"adamw_lr", "betas", "momentum", "nesterov", "weight_decay", "adjust_lr_fn"}
    ),
}
_OF_THE_LAB = frozenset({"base", "lr", "batch_size", "tune_batch_size"}) | SCHEDULE_OPTIONS
"""Options that every method has, and that are not arguments of its optimizer as they are."""

_USUAL_LR = {"adamw": 1e-3, "sgd": 0.05, "scion": 0.02, "torch-muon": 0.02}
"""Learning rates of methods that do not share that of Drop-Muon; a config or `--lr NAME=VALUE`
sets others."""


_PROGRESSES = [step / 20 for step in range(21)]


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
        """Whether its settings have to be planned for the model first."""
        return self.base.startswith(PREFIX) and self.base.endswith(f":{PLANNED}")

    @property
    def updates_per_batch(self) -> int:
        """How often each batch is used."""
        return int(self.options.get("updates_per_batch", 1))

    @property
    def parts(self) -> int:
        """How many parts each batch is cut into."""
        of_kind: Mapping[str, Any] = {}
        if self.base.startswith(PREFIX):
            of_kind = kind_named(self.base.removeprefix(PREFIX)).arguments
        return int(self.options.get("parts", of_kind.get("parts", 1)))

    @property
    def tunes_batch_size(self) -> bool:
        """Whether its batch size is tuned, whatever the others do."""
        return bool(self.options.get("tune_batch_size", False))

    def schedule(self, shared: RateSchedule) -> RateSchedule:
        """Return the schedule of its learning rates."""
        return shared.changed(self.options)

    def batch_size(self, shared: int) -> int:
        """Return its own batch size, else the shared one."""
        return int(self.options.get("batch_size", shared))

    def lr(self, shared: float) -> float:
        """Return its own learning rate, else the usual one of its base, else the shared one."""
        return float(self.options.get("lr", _USUAL_LR.get(self.base, shared)))

    def settings(self, shared: Shared) -> dict[str, Any]:
        """Return what the method runs with: its options, and the shared settings that it uses."""
        own = {key: value for key, value in self.options.items() if key != "base"}
        used = {}
        if self.base == "full" or self.base.startswith(PREFIX):
            used = {"momentum": shared.momentum, "policy": shared.policy}
        return {"lr": self.lr(shared.lr), **used, **own}

    def optimizer(
        self, model: nn.Module, shared: Shared, planned: Mapping[str, Any] | None = None
    ) -> Optimizer:
        """Make the optimizer for a model of the lab."""
        lr = self.lr(shared.lr)
        own = {k: v for k, v in self.options.items() if k not in _OF_THE_LAB}
        if self.base == "adamw":
            return torch.optim.AdamW(model.parameters(), lr, betas=_betas(own), **own)
        if self.base == "sgd":
            return torch.optim.SGD(model.parameters(), lr, **{"momentum": 0.9, **own})
        if self.base == "torch-muon":
            return TorchMuon(model, lr, **own)
        common = {"by": item_of, "total_steps": shared.total_steps, "seed": shared.seed}
        if self.base == "scion":
            return presets.scion(model, lr, **{**common, **own})
        chosen = {"momentum": shared.momentum, "policy": shared.policy, **common}
        sampler: Sampler = Full()
        if self.base != "full":
            kind = kind_named(self.base.removeprefix(PREFIX))
            layers = len({item_of(name) for name, _ in model.named_parameters()})
            own = {k: v for k, v in own.items() if k not in kind.options}
            if self.needs_plan and planned is not None:
                return DropMuon(model, lr, **{**chosen, **planned, **kind.arguments, **own})
            sampler = kind.make(layers, self.options)
            chosen |= kind.arguments
        return DropMuon(model, lr, sampler=sampler, **{**chosen, **own})


def _betas(own: dict[str, Any]) -> tuple[float, float]:
    """Take the betas out of options; `momentum` is another name of the first."""
    given = own.pop("betas", (0.9, 0.999))
    if not (isinstance(given, list | tuple) and len(given) == 2):
        raise ValueError(f"option betas of method adamw must be two numbers, got {given!r}")
    return own.pop("momentum", given[0]), given[1]


def method_named(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return the method of this name; errors list the names and options there are.

    Any name is accepted whose options name a `base`. A base may end in `@SIZE`, a batch size of its
    own, or in `@tuned`, one that tuning finds. `muon` is an old name of `full`: the method keeps it
    as its name, so that runs that began with it can be resumed.
    """
    options = dict(options or {})
    base, at, size = str(options.get("base", name)).partition("@")
    if at:
        of_name = (
            {"tune_batch_size": True} if size == "tuned" else {"batch_size": _size(name, size)}
        )
        options = {**of_name, **options}
    if base in _OLD_NAMES:
        _warn_of_old_name(base)
        base = _OLD_NAMES[base]
    _check_base(base)
    _check_options(name, base, options)
    return Method(name, base, options)


def method_names() -> list[str]:
    """Return all names, with letters where numbers go."""
    return ["full", *(f"{PREFIX}{kind}" for kind in kind_names()), *_OTHERS]


def drawing(optimizer: Optimizer) -> dict[str, Any]:
    """Return the layers, and how likely each is the cutoff and moves as training progresses."""
    if not isinstance(optimizer, DropMuon):
        return {
            "layers": [],
            "optimizer": _text(optimizer),
            "sampler": None,
            "progress": [],
            "cutoff": [],
            "moves": [],
        }
    b = len(optimizer.layers)
    marginals = [optimizer.sampler.marginals(b, progress) for progress in _PROGRESSES]
    return {
        "layers": list(optimizer.layers),
        "optimizer": str(optimizer),
        "sampler": repr(optimizer.sampler),
        "parts": optimizer.parts,
        "turns": optimizer.draws.turns,
        "progress": _PROGRESSES,
        "cutoff": [np.diff(F, prepend=0.0).clip(0.0).tolist() for F, _ in marginals],
        "moves": [Q.tolist() for _, Q in marginals],
    }


def _text(optimizer: Optimizer) -> str:
    """Return class and main settings of an optimizer that is not ours."""
    if isinstance(optimizer, TorchMuon):
        return f"{_text(optimizer.muon)} and {_text(optimizer.adamw)}"
    settings = {k: v for k, v in optimizer.defaults.items() if k in {"lr", "momentum", "betas"}}
    return f"{type(optimizer).__name__}({settings})"


def _check_base(base: str) -> None:
    if base == "full" or base in _OTHERS:
        return
    kind = base.removeprefix(PREFIX)
    if kind == base:
        raise unknown_name("method", base, method_names())
    kind_named(kind)


def _size(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(
            f"method {name!r} must have a batch size or 'tuned' after @, got {text!r}; write "
            "full@512"
        )
    return int(text)


def _check_options(name: str, base: str, options: Mapping[str, Any]) -> None:
    accepted = set(_OF_THE_LAB | _OPTIONS.get(base, _DROP_MUON_OPTIONS))
    if base.startswith(PREFIX):
        accepted |= kind_named(base.removeprefix(PREFIX)).options
    for option in options:
        if option not in accepted:
            raise unknown_name(f"option of method {name!r}", str(option), accepted)
    for key in {"lr", "adamw_lr"} & set(options):
        lr = options[key]
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not lr > 0:
            raise ValueError(f"{key} of method {name!r} must be a positive number, got {lr!r}")
        if lr > LARGEST_LR:
            raise ValueError(
                f"{key} of method {name!r} must be at most {LARGEST_LR:g}, got {lr!r}; lower it"
            )
    if "batch_size" in options:
        whole_number(f"batch_size of method {name!r}", options["batch_size"])
    if not isinstance(options.get("tune_batch_size", False), bool):
        given = options["tune_batch_size"]
        raise ValueError(f"tune_batch_size of method {name!r} must be true or false, got {given!r}")
    if SCHEDULE_OPTIONS & set(options):
        RateSchedule().changed(options)


@cache
def _warn_of_old_name(old: str) -> None:
    """Log once per process what a method is called now; without a handler, on stderr."""
    logging.getLogger(__name__).warning(
        "dropmuon: method %r is an old name, accepted until the next release; use %r instead, or "
        "'torch-muon' for torch.optim.Muon",
        old,
        _OLD_NAMES[old],
    )
