"""The best configuration of every method, where a method that was tried more often gains nothing.

Runs of the same task are one group. In a group, each method was tried in some configurations; the
budget is what the least tried one had. A method's fair figure is the best of so many of its
configurations, expected over all ways to choose them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dropmuon.lab.analysis.metrics import time_to_target
from dropmuon.lab.analysis.series import UNITS, Unit, as_far, trials
from dropmuon.lab.run import Evaluation, RunDirectory

__all__ = ["Choice", "Group", "Tuned", "distinct", "expected_best", "groups"]

_TASK = (
    "dataset",
    "model",
    "channels",
    "batch_norm",
    "context",
    "epochs",
    "augment",
    "scale",
    "device",
    "threads",
    "evaluations_per_epoch",
    "train_examples",
)
_SETTINGS = ("lr", "momentum", "batch_size", "policy")


@dataclass(frozen=True)
class Choice:
    """One method in one configuration, over all its whole trials.

    Attributes:
        times: mean time to the group's target, None where a seed missed it.
        ranges: least and greatest of these times over seeds.
    """

    method: str
    settings: Mapping[str, Any]
    runs: tuple[str, ...]
    seeds: int
    test: float
    times: Mapping[Unit, float | None]
    ranges: Mapping[Unit, tuple[float, float] | None]


@dataclass(frozen=True)
class Tuned:
    """A method's best, and what its best would be under the equal budget.

    Attributes:
        soonest: its configuration with the least time, None where all missed.
        expected_time: over the draws in which some configuration reached the target.
        chance: of such a draw.
    """

    method: str
    tried: int
    best: Choice
    expected_test: float
    soonest: Mapping[Unit, Choice | None]
    expected_time: Mapping[Unit, float | None]
    chance: float


@dataclass(frozen=True)
class Group:
    """Runs of one task.

    Attributes:
        varied: the settings in which configurations of one method differ.
        target: the highest test accuracy that some configuration reached on all its seeds.
    """

    task: Mapping[str, Any]
    runs: tuple[str, ...]
    varied: tuple[str, ...]
    budget: int
    target: float | None
    methods: tuple[Tuned, ...]

    def ranking(self, unit: Unit = "seconds") -> list[Tuned]:
        """The methods that reached the target, the surest first and of those the soonest."""
        reached = [each for each in self.methods if each.expected_time[unit] is not None]
        return sorted(reached, key=lambda each: (-round(each.chance, 9), each.expected_time[unit]))


def groups(runs: Sequence[RunDirectory]) -> list[Group]:
    """Runs by task, in the order of their first."""
    found: dict[str, list[RunDirectory]] = {}
    for run in distinct(runs):
        task = {key: run.config.get(key) for key in _TASK}
        found.setdefault(json.dumps(task, sort_keys=True), []).append(run)
    return [_group(json.loads(task), members) for task, members in found.items()]


def distinct(runs: Iterable[RunDirectory]) -> list[RunDirectory]:
    """Every directory once, however often it was given."""
    return list({run.path.resolve(): run for run in runs}.values())


def expected_best(values: Iterable[float], draws: int) -> tuple[float | None, float]:
    """The greatest of so many values drawn without replacement, in expectation.

    By order statistics: the i-th greatest of N is the greatest drawn in C(N - i, draws - 1) of
    C(N, draws) ways. Values of -inf are failures: the expectation is over draws that hold more
    than failures, and the chance of such a draw comes with it.
    """
    given = sorted(values, reverse=True)
    if not 1 <= draws <= len(given):
        raise ValueError(f"draws must lie in [1, {len(given)}], the number of values, got {draws}")
    ways = math.comb(len(given), draws)
    weights = [math.comb(len(given) - i, draws - 1) / ways for i in range(1, len(given) + 1)]
    good = [(v, w) for v, w in zip(given, weights, strict=True) if math.isfinite(v)]
    chance = sum(weight for _, weight in good)
    return (sum(v * w for v, w in good) / chance if chance else None), min(chance, 1.0)


def _group(task: Mapping[str, Any], runs: Sequence[RunDirectory]) -> Group:
    kept = _whole_trials(runs)
    targets = {float(target) for run in runs for target in run.config.get("targets", [])}
    target = _target(targets, [[trial for _, trial in found] for found in kept.values()])
    choices: dict[str, list[Choice]] = {}
    for (method, settings), found in kept.items():
        choices.setdefault(method, []).append(_choice(method, settings, found, target))
    budget = min((len(found) for found in choices.values()), default=0)
    tuned = tuple(_tuned(found, budget) for found in choices.values())
    differing = (_varied([choice.settings for choice in found]) for found in choices.values())
    varied = tuple(dict.fromkeys(key for keys in differing for key in keys))
    return Group(task, tuple(run.path.name for run in runs), varied, budget, target, tuned)


def _whole_trials(
    runs: Sequence[RunDirectory],
) -> dict[tuple[str, str], list[tuple[str, list[Evaluation]]]]:
    """Trials by method and configuration, each with its run's name and every seed once."""
    found: dict[tuple[str, str], dict[int, tuple[str, list[Evaluation]]]] = {}
    for run in runs:
        epochs = float(run.config.get("epochs") or 0)
        for method, of_seed in trials(run.evaluations()).items():
            whole = {s: t for s, t in of_seed.items() if as_far(t[-1].epoch, epochs)}
            if whole:
                key = (method, json.dumps(_settings(run, method), sort_keys=True))
                known = found.setdefault(key, {})
                for seed, trial in whole.items():
                    known.setdefault(seed, (run.path.name, trial))
    return {key: list(of_seed.values()) for key, of_seed in found.items()}


def _varied(settings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return tuple(key for key in keys if len({repr(each.get(key)) for each in settings}) > 1)


def _settings(run: RunDirectory, method: str) -> dict[str, Any]:
    """What the method really used; runs that do not record it are taken at their configuration."""
    config = run.config
    recorded = run.methods if (run.path / "methods.json").exists() else {}
    effective = recorded.get(method, {}).get("settings")
    if effective is not None:
        return {"batch_size": config.get("batch_size"), **effective}
    shared = {key: config.get(key) for key in _SETTINGS}
    return shared | dict(config.get("options", {}).get(method, {}))


def _target(
    targets: Iterable[float], choices: Sequence[Sequence[list[Evaluation]]]
) -> float | None:
    """The highest that some configuration reached on all its seeds."""
    for target in sorted(targets, reverse=True):
        if any(all(time_to_target(t, target, "test") is not None for t in c) for c in choices):
            return target
    return None


def _choice(
    method: str, settings: str, found: Sequence[tuple[str, list[Evaluation]]], target: float | None
) -> Choice:
    times: dict[Unit, float | None] = {}
    ranges: dict[Unit, tuple[float, float] | None] = {}
    for unit in UNITS:
        reached = [
            None if target is None else time_to_target(trial, target, "test", unit)
            for _, trial in found
        ]
        known = [time for time in reached if time is not None]
        whole = len(known) == len(found)
        times[unit] = sum(known) / len(known) if whole else None
        ranges[unit] = (min(known), max(known)) if whole else None
    return Choice(
        method=method,
        settings=json.loads(settings),
        runs=tuple(dict.fromkeys(name for name, _ in found)),
        seeds=len(found),
        test=sum(trial[-1].test_accuracy for _, trial in found) / len(found),
        times=times,
        ranges=ranges,
    )


def _tuned(choices: Sequence[Choice], budget: int) -> Tuned:
    soonest: dict[Unit, Choice | None] = {}
    expected: dict[Unit, float | None] = {}
    chance = 0.0
    for unit in UNITS:
        times = [math.inf if c.times[unit] is None else float(c.times[unit] or 0) for c in choices]
        place = min(range(len(times)), key=times.__getitem__)
        soonest[unit] = choices[place] if math.isfinite(times[place]) else None
        value, chance = expected_best([-time for time in times], budget)
        expected[unit] = None if value is None else -value
    test, _ = expected_best([choice.test for choice in choices], budget)
    best = max(choices, key=lambda choice: choice.test)
    return Tuned(best.method, len(choices), best, test or 0.0, soonest, expected, chance)
