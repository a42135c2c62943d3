"""Where tuning looks: what is searched for a method, and which settings are tried next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from scipy.stats import qmc

from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method
from dropmuon.norms import AdamW
from dropmuon.optimizer import DropMuon

__all__ = ["Space", "at_the_end", "inside", "is_inside", "next_settings", "search_space"]

Space = dict[str, BaseDistribution]
"""What is searched, by setting."""

_RATE_REACH = 10.0
_ADAMW_RATES = (1e-4, 3e-2)
_LARGEST_MOMENTUM = 0.95
_SPREAD = 4
"""Trials before a model of the loss proposes; the first has the settings that were given."""

_LEAST_LOSS = 1e-12
_NEARLY = 1.02

_SMALLER = (1, 2, 4, 8)
"""Batches that are tried: whole, halves, quarters and eighths of the given size."""


def search_space(config: Config, method: Method, optimizer: Any) -> tuple[Space, dict[str, Any]]:
    """Return what is searched for a method, and its given settings, which are tried first."""
    lr = method.lr(config.lr)
    space: Space = {"lr": FloatDistribution(lr / _RATE_REACH, lr * _RATE_REACH, log=True)}
    given: dict[str, Any] = {"lr": lr}
    if _uses_adamw(method, optimizer):
        given["adamw_lr"] = own = float(method.options.get("adamw_lr", 3e-4))
        low, high = _ADAMW_RATES
        space["adamw_lr"] = FloatDistribution(min(low, own), max(high, own), log=True)
    group = optimizer.param_groups[0]
    given["momentum"] = momentum = float(group.get("momentum", group.get("betas", (0.0,))[0]))
    least = 0.01 if group.get("nesterov") and momentum else 0.0  # torch's SGD refuses 0 there
    space["momentum"] = FloatDistribution(min(least, momentum), max(_LARGEST_MOMENTUM, momentum))
    if method.options.get("tune_batch_size", config.tune_batch_size):
        given["batch_size"] = size = method.batch_size(config.batch_size)
        sizes = {size // by for by in _SMALLER if size // by >= 2 * method.parts} | {size}
        space["batch_size"] = CategoricalDistribution(sorted(sizes))
    return space, given


def next_settings(space: Space, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings to try after these: a few spread evenly, then by a model of the loss.

    A function of the trials alone, so that a search can be continued. No settings are proposed
    twice.
    """
    place = len(trials)
    proposed = _spread(space, place) if place < _SPREAD else _by_model(space, trials)
    tried = [each["settings"] for each in trials]
    return proposed if proposed not in tried else _spread(space, place)


def is_inside(settings: Mapping[str, Any], space: Space) -> bool:
    """Return whether these are values of all that is searched, and of nothing else."""
    return set(settings) == set(space) and all(_has(space[name], settings[name]) for name in space)


def inside(hint: Mapping[str, Any], space: Space, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a hint that are searched, and the given ones for the others."""
    own = {name: hint[name] for name in space if name in hint and _has(space[name], hint[name])}
    return {**given, **own}


def at_the_end(settings: Mapping[str, Any], space: Space) -> list[str]:
    """Return which rates are the smallest or the largest that are searched, or nearly so."""
    return [
        name
        for name, searched in space.items()
        if isinstance(searched, FloatDistribution)
        and searched.log
        and not _NEARLY * searched.low < settings[name] < searched.high / _NEARLY
    ]


def _spread(space: Space, place: int) -> dict[str, Any]:
    """Return a point of Halton's sequence: the first ones are far apart in every setting."""
    sequence = qmc.Halton(len(space), scramble=False)
    sequence.fast_forward(place)
    point = sequence.random()[0]
    return {name: _at(space[name], float(u)) for name, u in zip(space, point, strict=True)}


def _at(searched: BaseDistribution, share: float) -> Any:
    """Return the value at this share of the way through what is searched."""
    if isinstance(searched, CategoricalDistribution):
        return searched.choices[int(share * len(searched.choices))]
    assert isinstance(searched, FloatDistribution)
    low, high = searched.low, searched.high
    if searched.log:
        return low * (high / low) ** share
    return low + share * (high - low)


def _by_model(space: Space, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a Gaussian process of the trials finds most promising.

    It makes more of a dozen trials than Optuna's default, whose first ten are random.
    """
    sampler = optuna.samplers.GPSampler(seed=len(trials), n_startup_trials=1)
    study = optuna.create_study(sampler=sampler)
    for each, value in zip(trials, _values([t["loss"] for t in trials]), strict=True):
        study.add_trial(
            optuna.trial.create_trial(params=each["settings"], distributions=space, value=value)
        )
    return dict(study.ask(space).params)


def _values(losses: Sequence[float | None]) -> list[float]:
    """Return what is modelled: logarithms of losses, where all bad ones are equally bad.

    Otherwise a cliff, beyond which training diverges or nearly so, would hide the other slopes.
    """
    logs = [math.log(max(loss, _LEAST_LOSS)) for loss in losses if loss is not None] or [0.0]
    diverged = max(logs) + 1.0
    values = [diverged if loss is None else math.log(max(loss, _LEAST_LOSS)) for loss in losses]
    middle = statistics.median(values)
    return [min(each, 2 * middle - min(values)) for each in values]


def _has(searched: BaseDistribution, value: Any) -> bool:
    if isinstance(searched, FloatDistribution) and isinstance(value, int | float):
        return searched.low <= value <= searched.high
    return isinstance(searched, CategoricalDistribution) and value in searched.choices


def _uses_adamw(method: Method, optimizer: Any) -> bool:
    if isinstance(optimizer, DropMuon):
        return any(isinstance(member.norm, AdamW) for member in optimizer.roster.members())
    return method.base == "torch-muon"
