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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method
from dropmuon.lab.run import RunDirectory, finite
from dropmuon.lab.train.equal_terms import (
    Budget,
    initial_model,
    measured_budget,
    shared_settings,
    without_validation,
)
from dropmuon.lab.train.proposals import at_the_end, inside, is_inside, next_settings, search_space
from dropmuon.lab.train.transfer import Weights, digest_of
from dropmuon.lab.train.trial import Trial, measured
from dropmuon.lab.watch import Watcher
from dropmuon.output import write_json
from dropmuon.version import __version__

__all__ = ["check_tunable", "is_published", "tuned", "with_tuned"]

_SEED = 0
_FORMAT = 1

_SETTINGS = (
    *("dataset", "model", "channels", "batch_norm", "join_head", "augment", "context"),
    *("batch_size", "lr"),
    *("momentum", "policy", "budget", "epochs", "schedule", "warm_up", "decay", "validation"),
)
"""Settings of a comparison that the result of tuning depends on."""

_IF_GIVEN = ("classes",)
"""Likewise; left out where they are empty, as in the files of earlier releases."""


def tuned(
    config: Config,
    found: data.Data,
    cache: Path,
    watcher: Watcher,
    planned: Mapping[str, Any] | None = None,
    start: Weights | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    published: Path | None = None,
) -> dict[str, Any]:
    """Return the best settings of every method, and how they were found.

    Args:
        cache: a directory with a file for each search.
        planned: the planner's settings, for methods that need them.
        start: the weights that training starts from.
        known: settings by method that a new search tries second, such as what was found at another
            budget. The first are those that were given, so that tuning never ends with a worse loss
            on the validation part.
        published: a run or a race whose settings are taken where they were found by as many trials
            under the same conditions, so that it can be repeated without its searches.

    The budget of a trial is `tune_share` of the comparison's.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    small, part = _while_tuning(config), without_validation(found, config.validation)
    report: dict[str, Any] = {}
    for name in config.methods:
        hint = (known or {}).get(name, {})
        search = _Search(small, part, config.method(name), planned, start, hint)
        report[name] = search.taken_from(published, config.tune)
        if report[name] is None:
            best = _best(name, search.run(cache / search.file, config.tune, watcher))
            ends = at_the_end(best["settings"], search.space)
            report[name] = {"trials": config.tune, "file": search.file, **best, "at_the_end": ends}
    return report


def is_published(path: Path) -> bool:
    """Return whether this is a run or a race, and not a directory of searches."""
    return any((path / name).exists() for name in ("tuned.json", "race.json"))


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


@dataclass
class _Search:
    """The search for the settings of one method."""

    config: Config
    found: data.Data
    method: Method
    planned: Mapping[str, Any] | None
    start: Weights | None
    hint: Mapping[str, Any]

    def __post_init__(self) -> None:
        settings = self.config.to_json()
        baseline = self.config.method(self.config.baseline)
        conditions = {
            **{name: settings[name] for name in _SETTINGS},
            **{name: settings[name] for name in _IF_GIVEN if settings[name]},
            **({} if self.start is None else {"init": digest_of(self.start)}),
            "tune_batch_size": self.config.tune_batch_size,
            "piece": self.config.piece,
            "method": {"base": self.method.base, "options": dict(self.method.options)},
            "baseline": {"base": baseline.base, "options": dict(baseline.options)},
            "plan": repr(self.planned) if self.method.needs_plan else None,
        }
        self.key: dict[str, Any] = json.loads(json.dumps(conditions))
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        self.file = f"{_slug(self.method.name)}-{digest[:16]}.json"
        self.initial = initial_model(self.config, self.found, _SEED, self.start)
        shared = shared_settings(self.config, 1, _SEED)
        optimizer = self.method.optimizer(copy.deepcopy(self.initial), shared, self.planned)
        self.space, self.given = search_space(self.config, self.method, optimizer)

    def taken_from(self, published: Path | None, count: int) -> dict[str, Any] | None:
        """Return what as many trials found in a run or race, if all conditions were the same."""
        runs = [] if published is None else [published, *sorted(published.glob("rung-*"))]
        for run in runs:
            entry = RunDirectory(run).tuned.get(self.method.name, {})
            is_same = (entry.get("file"), entry.get("trials")) == (self.file, count)
            if is_same and is_inside(entry["settings"], self.space):
                return dict(entry)
        return None

    def run(self, path: Path, count: int, watcher: Watcher) -> list[dict[str, Any]]:
        """Return the first `count` trials, known ones from the file, the others trained."""
        trials, hint = self._known(path)
        if len(trials) >= count:
            return trials[:count]
        budget = measured_budget(self.config, self.found)
        second = inside(hint, self.space, self.given)
        first = [self.given] if second == self.given else [self.given, second]
        while len(trials) < count:
            best = min((t["loss"] for t in trials if t["loss"] is not None), default=None)
            so_far = "" if best is None else f", best loss so far {best:.3f}"
            watcher.prepare(f"tuning {self.method.name}: {len(trials) + 1} of {count}{so_far}")
            place = len(trials)
            settings = first[place] if place < len(first) else next_settings(self.space, trials)
            trials.append({"settings": settings, "loss": finite(self._loss(settings, budget))})
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"format": _FORMAT, "dropmuon": __version__, "key": self.key}
            write_json(path, {**content, "hint": dict(hint), "trials": trials})
        return trials

    def _loss(self, settings: Mapping[str, Any], budget: Budget) -> float:
        """Train with these settings, and return the loss on the validation part."""
        method = replace(self.method, options={**self.method.options, **settings})
        trial = Trial(self.config, method, _SEED, self.found, self.initial, budget, self.planned)
        trial.advance(1.0)
        return measured(trial.model, self.found.test)[1]

    def _known(self, path: Path) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Return the trials in the file and the hint that its search began with.

        A damaged or stale file is an error.
        """
        if not path.exists():
            return [], self.hint
        remedy = "remove it, and its method is tuned again"
        try:
            content = json.loads(path.read_text())
            made_by, key, trials = (content[name] for name in ("dropmuon", "key", "trials"))
            losses, hint = [each["loss"] for each in trials], dict(content.get("hint", {}))
            outside = [t["settings"] for t in trials if not is_inside(t["settings"], self.space)]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"tuning cache {path} is damaged ({error!r}); {remedy}") from error
        if not all(loss is None or isinstance(loss, float) for loss in losses):
            raise ValueError(f"tuning cache {path} is damaged (a loss is no number); {remedy}")
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
        if outside:
            raise ValueError(
                f"tuning cache {path} is stale: {outside[0]} is outside of what is searched; "
                f"{remedy}"
            )
        return list(trials), hint


def _best(name: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    best = min(trials, key=lambda each: math.inf if each["loss"] is None else each["loss"])
    if best["loss"] is None:
        raise ValueError(
            f"tuning found no setting of {name} with a finite loss in {len(trials)} trials; "
            "lower its lr"
        )
    return best


def _while_tuning(config: Config) -> Config:
    epochs = config.epochs * config.tune_share
    return replace(config, epochs=epochs, seeds=(_SEED,))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", name)[:60]
