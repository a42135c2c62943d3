"""Tuning: every method gets the same number of trials on a validation part of the training set.

Test data take no part. What is found is kept in a file per method, named by everything that it
depends on, and never searched for again; an interrupted search is continued where it was.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from torch import nn

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method
from dropmuon.lab.run import finite
from dropmuon.lab.train.equal_terms import (
    Budget,
    initial_model,
    measured_budget,
    shared_settings,
    without_validation,
)
from dropmuon.lab.train.transfer import Weights, digest_of
from dropmuon.lab.train.trial import Trial, measured
from dropmuon.lab.watch import Watcher
from dropmuon.norms import AdamW
from dropmuon.optimizer import DropMuon
from dropmuon.output import write_json
from dropmuon.version import __version__

__all__ = ["check_tunable", "next_settings", "search_space", "tuned", "with_tuned"]

_SEED = 0
_FORMAT = 1
_RATE_REACH = 10.0
_ADAMW_RATES = (1e-4, 3e-2)
_LARGEST_MOMENTUM = 0.95
_AT_RANDOM = 4
"""Trials before a model of the loss chooses; the first has the settings that were given."""

_SMALLER = (1, 2, 4, 8)
"""Batches that are tried: whole, halves, quarters and eighths of the given size."""

_SETTINGS = (
    *("dataset", "model", "channels", "batch_norm", "join_head", "augment", "context"),
    *("batch_size", "lr"),
    *("momentum", "policy", "budget", "epochs", "schedule", "warm_up", "decay", "validation"),
)
"""Settings of a comparison that the result of tuning depends on."""

_IF_GIVEN = ("classes",)
"""Likewise; left out where they are empty, as in the files of earlier releases."""

Space = dict[str, BaseDistribution]


def tuned(
    config: Config,
    found: data.Data,
    cache: Path,
    watcher: Watcher,
    planned: Mapping[str, Any] | None = None,
    start: Weights | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the best settings of every method, and how they were found.

    `cache` may also be a run or a race that was tuned: then what it found is taken, so that a
    published race can be repeated without its search. The settings that were given are the first
    trial, so that tuning never ends with a worse loss on the validation part; the second are those
    in `known`, by method, such as what was found at another budget. The budget of a trial is
    `tune_share` of the comparison's, and its model starts from the same weights.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    small, part = _while_tuning(config), without_validation(found, config.validation)
    report: dict[str, Any] = {}
    for name in config.methods:
        hint = (known or {}).get(name)
        search = _Search(small, part, config.method(name), planned, start, hint)
        path = cache / f"{_slug(name)}-{search.digest}.json"
        report[name] = _published(cache, name, path.name, config.tune) or {
            "trials": config.tune,
            "file": path.name,
            **_best(name, search.run(path, config.tune, watcher)),
        }
    return report


def with_tuned(config: Config, report: Mapping[str, Any]) -> Config:
    """Return the configuration with the settings that were found."""
    try:
        found = {name: report[name]["settings"] for name in config.methods}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"tuned.json has no settings of {error}; the run is damaged: start it again"
        ) from error
    own = {name: {**config.options.get(name, {}), **each} for name, each in found.items()}
    return replace(config, options={**config.options, **own})


def check_tunable(config: Config, found: data.Data) -> None:
    """Raise ValueError if a batch does not fit beside the validation part, or a step the budget."""
    small, part = _while_tuning(config), without_validation(found, config.validation)
    for name in config.methods:
        size = config.method(name).batch_size(config.batch_size)
        if size > len(part.train):
            raise ValueError(
                f"batch_size must be at most the {len(part.train)} examples that validation="
                f"{config.validation:g} leaves for tuning, got {size}; lower one of them"
            )
    measured_budget(replace(small, budget="epochs"), part)


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
    """Return the settings to try after these: few at random, then by a model of the loss.

    A function of the trials alone, so that a search can be continued. The model is a Gaussian
    process, which makes more of a dozen trials than Optuna's default, whose first ten are random.
    A trial that diverged counts as the worst one that did not.
    """
    sampler = optuna.samplers.GPSampler(seed=len(trials), n_startup_trials=_AT_RANDOM)
    study = optuna.create_study(sampler=sampler)
    worst = max((t["loss"] for t in trials if t["loss"] is not None), default=0.0)
    for each in trials:
        loss = worst if each["loss"] is None else each["loss"]
        study.add_trial(
            optuna.trial.create_trial(params=each["settings"], distributions=space, value=loss)
        )
    return dict(study.ask(space).params)


@dataclass
class _Search:
    """The search for the settings of one method."""

    config: Config
    found: data.Data
    method: Method
    planned: Mapping[str, Any] | None
    start: Weights | None
    hint: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        settings = self.config.to_json()
        baseline = self.config.method(self.config.baseline)
        whole = {
            **{name: settings[name] for name in _SETTINGS},
            **{name: settings[name] for name in _IF_GIVEN if settings[name]},
            **({} if self.start is None else {"init": digest_of(self.start)}),
            **({} if self.hint is None else {"hint": dict(self.hint)}),
            "tune_batch_size": self.config.tune_batch_size,
            "piece": self.config.piece,
            "method": {"base": self.method.base, "options": dict(self.method.options)},
            "baseline": {"base": baseline.base, "options": dict(baseline.options)},
            "plan": repr(self.planned) if self.method.needs_plan else None,
        }
        self.key: dict[str, Any] = json.loads(json.dumps(whole))
        text = json.dumps(self.key, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def run(self, path: Path, count: int, watcher: Watcher) -> list[dict[str, Any]]:
        """Return the first `count` trials, known ones from the file, the others trained."""
        trials = self._known(path)
        if len(trials) >= count:
            return trials[:count]
        initial = initial_model(self.config, self.found, _SEED, self.start)
        budget = measured_budget(self.config, self.found)
        shared = shared_settings(self.config, 1, _SEED)
        optimizer = self.method.optimizer(copy.deepcopy(initial), shared, self.planned)
        space, given = search_space(self.config, self.method, optimizer)
        _check_inside(path, trials, space)
        hint = _inside(self.hint or {}, space, given)
        first = [given] if hint == given else [given, hint]
        while len(trials) < count:
            best = min((t["loss"] for t in trials if t["loss"] is not None), default=None)
            so_far = "" if best is None else f", best loss so far {best:.3f}"
            watcher.prepare(f"tuning {self.method.name}: {len(trials) + 1} of {count}{so_far}")
            place = len(trials)
            settings = first[place] if place < len(first) else next_settings(space, trials)
            loss = self._loss(settings, initial, budget)
            trials.append({"settings": settings, "loss": finite(loss)})
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"format": _FORMAT, "dropmuon": __version__, "key": self.key}
            write_json(path, {**content, "trials": trials})
        return trials

    def _loss(self, settings: Mapping[str, Any], initial: nn.Sequential, budget: Budget) -> float:
        """Train with these settings, and return the loss on the validation part."""
        method = replace(self.method, options={**self.method.options, **settings})
        trial = Trial(self.config, method, _SEED, self.found, initial, budget, self.planned)
        trial.advance(1.0)
        return measured(trial.model, self.found.test)[1]

    def _known(self, path: Path) -> list[dict[str, Any]]:
        """Return the trials in the file; a damaged or stale one is an error."""
        if not path.exists():
            return []
        remedy = "remove it, and its method is tuned again"
        try:
            content = json.loads(path.read_text())
            made_by, key, trials = (content[name] for name in ("dropmuon", "key", "trials"))
            is_sound = all({"settings", "loss"} <= set(each) for each in trials)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"tuning cache {path} is damaged ({error}); {remedy}") from error
        if not is_sound:
            raise ValueError(f"tuning cache {path} is damaged (a trial is incomplete); {remedy}")
        if content.get("format") != _FORMAT or made_by != __version__:
            raise ValueError(
                f"tuning cache {path} is stale: it is of dropmuon {made_by}, and this is "
                f"{__version__}; {remedy}"
            )
        for name, value in self.key.items():
            if key.get(name) != value:
                raise ValueError(
                    f"tuning cache {path} is stale: {name} was {key.get(name)!r}, and is "
                    f"{value!r}; {remedy}"
                )
        return list(trials)


def _best(name: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    best = min(trials, key=lambda each: math.inf if each["loss"] is None else each["loss"])
    if best["loss"] is None:
        raise ValueError(
            f"tuning found no setting of {name} with a finite loss in {len(trials)} trials; "
            "lower its lr"
        )
    return best


def _published(cache: Path, name: str, file: str, count: int) -> dict[str, Any] | None:
    """Return what as many trials found in a run or race at `cache`, if everything was the same.

    The name of the file has the digest of all that tuning depends on.
    """
    for path in sorted({*cache.glob("tuned.json"), *cache.glob("rung-*/tuned.json")}):
        try:
            entry = json.loads(path.read_text()).get(name, {})
            is_same = (entry.get("file"), entry.get("trials")) == (file, count)
            if is_same and isinstance(entry["settings"], dict):
                return dict(entry)
        except (ValueError, AttributeError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); give another --tune-cache") from error
    return None


def _while_tuning(config: Config) -> Config:
    epochs = config.epochs * config.tune_share
    return replace(config, epochs=epochs, seeds=(_SEED,))


def _check_inside(path: Path, trials: Sequence[Mapping[str, Any]], space: Space) -> None:
    """Raise ValueError if the trials in a file are not of this search."""
    for each in (trial["settings"] for trial in trials):
        if set(each) != set(space) or not all(_has(space[name], each[name]) for name in space):
            raise ValueError(
                f"tuning cache {path} is stale: {each} is outside of what is searched; remove it, "
                "and its method is tuned again"
            )


def _inside(hint: Mapping[str, Any], space: Space, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a hint that are searched, and the given ones for the others."""
    own = {name: hint[name] for name in space if name in hint and _has(space[name], hint[name])}
    return {**given, **own}


def _has(searched: BaseDistribution, value: Any) -> bool:
    if isinstance(searched, FloatDistribution) and isinstance(value, int | float):
        return searched.low <= value <= searched.high
    return isinstance(searched, CategoricalDistribution) and value in searched.choices


def _uses_adamw(method: Method, optimizer: Any) -> bool:
    if isinstance(optimizer, DropMuon):
        return any(isinstance(member.norm, AdamW) for member in optimizer.roster.members())
    return method.base == "torch-muon"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", name)[:60]
