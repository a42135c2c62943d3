"""The best configuration of every method, at an equal budget of tries.

In the runs of one task, each method was tried in some configurations; the budget is as many as the
least tried method had. A method is rated by the best of as many of its configurations, in
expectation over all ways to choose them, so that being tried more often gains nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dropmuon.lab.analysis.metrics import time_to_target
from dropmuon.lab.analysis.series import UNITS, Unit, has_ended, trials
from dropmuon.lab.run import Evaluation, RunDirectory

__all__ = ["Configuration", "Task", "TunedMethod", "distinct", "expected_best", "tasks"]

_TASK_SETTINGS = (
    "dataset",
    "model",
    "channels",
    "batch_norm",
    "join_head",
    "context",
    "epochs",
    "budget",
    "schedule",
    "augment",
    "scale",
    "device",
    "threads",
    "evaluations_per_epoch",
    "train_examples",
)
_IF_GIVEN = ("classes", "init")
"""Settings of the task that earlier runs do not have: empty is the same as absent."""

_METHOD_SETTINGS = ("lr", "momentum", "batch_size", "policy")


@dataclass(frozen=True)
class Configuration:
    """One method in one configuration, over all its finished trials.

    Attributes:
        times: mean time to the task's target, None if a seed missed it.
        ranges: the least and the greatest of these times over seeds.
    """

    method: str
    settings: Mapping[str, Any]
    runs: tuple[str, ...]
    seeds: int
    test: float
    times: Mapping[Unit, float | None]
    ranges: Mapping[Unit, tuple[float, float] | None]


@dataclass(frozen=True)
class TunedMethod:
    """The best of a method, and what its best would be with the equal budget.

    Attributes:
        soonest: the configuration that reached the target first, None if all missed it.
        expected_time: over the draws in which a configuration reached the target.
        chance: the probability of such a draw.
    """

    method: str
    tried: int
    best: Configuration
    expected_test: float
    soonest: Mapping[Unit, Configuration | None]
    expected_time: Mapping[Unit, float | None]
    chance: float


@dataclass(frozen=True)
class Task:
    """The runs of one task, and its methods.

    Attributes:
        settings: those that make the task.
        varied: the settings in which configurations of one method differ.
        target: the highest target that a configuration reached in test accuracy on all its seeds.
    """

    settings: Mapping[str, Any]
    runs: tuple[str, ...]
    varied: tuple[str, ...]
    budget: int
    target: float | None
    methods: tuple[TunedMethod, ...]

    def ranking(self, unit: Unit = "seconds") -> list[TunedMethod]:
        """Return the methods that reached the target, the most reliable first, then the soonest."""
        reached = [each for each in self.methods if each.expected_time[unit] is not None]
        return sorted(reached, key=lambda each: (-round(each.chance, 9), each.expected_time[unit]))


def tasks(runs: Sequence[RunDirectory]) -> list[Task]:
    """Return the tasks of these runs, in the order of their first run."""
    found: dict[str, list[RunDirectory]] = {}
    for run in distinct(runs):
        settings = {key: run.config.get(key) for key in _TASK_SETTINGS}
        settings |= {key: run.config.get(key) or None for key in _IF_GIVEN}
        found.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    return [_task(json.loads(settings), members) for settings, members in found.items()]


def distinct(runs: Iterable[RunDirectory]) -> list[RunDirectory]:
    """Return every directory once, however often it was given."""
    return list({run.path.resolve(): run for run in runs}.values())


def expected_best(values: Iterable[float], draws: int) -> tuple[float | None, float]:
    """Return the expected greatest of `draws` values that are drawn without replacement.

    By order statistics: the i-th greatest of N is the greatest drawn in C(N - i, draws - 1) of
    C(N, draws) ways. Values of -inf are failures: the expectation is over the draws that are not
    all failures, and the probability of such a draw is returned with it.
    """
    given = sorted(values, reverse=True)
    if not 1 <= draws <= len(given):
        raise ValueError(f"draws must lie in [1, {len(given)}], the number of values, got {draws}")
    ways = math.comb(len(given), draws)
    weights = [math.comb(len(given) - i, draws - 1) / ways for i in range(1, len(given) + 1)]
    good = [(v, w) for v, w in zip(given, weights, strict=True) if math.isfinite(v)]
    chance = sum(weight for _, weight in good)
    return (sum(v * w for v, w in good) / chance if chance else None), min(chance, 1.0)


def _task(settings: Mapping[str, Any], runs: Sequence[RunDirectory]) -> Task:
    kept = _finished_trials(runs)
    targets = {float(target) for run in runs for target in run.config.get("targets", [])}
    target = _target(targets, [[trial for _, trial in found] for found in kept.values()])
    configurations: dict[str, list[Configuration]] = {}
    for (method, own), found in kept.items():
        configurations.setdefault(method, []).append(_configuration(method, own, found, target))
    budget = min((len(found) for found in configurations.values()), default=0)
    tuned = tuple(_tuned(found, budget) for found in configurations.values())
    differing = (
        _varied([configuration.settings for configuration in found])
        for found in configurations.values()
    )
    varied = tuple(dict.fromkeys(key for keys in differing for key in keys))
    return Task(settings, tuple(run.path.name for run in runs), varied, budget, target, tuned)


def _finished_trials(
    runs: Sequence[RunDirectory],
) -> dict[tuple[str, str], list[tuple[str, list[Evaluation]]]]:
    """Return finished trials by method and configuration, with run names and every seed once."""
    found: dict[tuple[str, str], dict[int, tuple[str, list[Evaluation]]]] = {}
    for run in runs:
        epochs = float(run.config.get("epochs") or 0)
        for method, of_seed in trials(run.evaluations()).items():
            whole = {s: t for s, t in of_seed.items() if has_ended(t, epochs)}
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
    """Return the settings that a method used, or was given if the run does not record them."""
    config = run.config
    recorded = run.methods if (run.path / "methods.json").exists() else {}
    effective = recorded.get(method, {}).get("settings")
    if effective is not None:
        return {"batch_size": config.get("batch_size"), **effective}
    shared = {key: config.get(key) for key in _METHOD_SETTINGS}
    return shared | dict(config.get("options", {}).get(method, {}))


def _target(
    targets: Iterable[float], configurations: Sequence[Sequence[list[Evaluation]]]
) -> float | None:
    """Return the highest target that a configuration reached on all its seeds."""
    for target in sorted(targets, reverse=True):
        if any(
            all(time_to_target(t, target, "test") is not None for t in c) for c in configurations
        ):
            return target
    return None


def _configuration(
    method: str, settings: str, found: Sequence[tuple[str, list[Evaluation]]], target: float | None
) -> Configuration:
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
    return Configuration(
        method=method,
        settings=json.loads(settings),
        runs=tuple(dict.fromkeys(name for name, _ in found)),
        seeds=len(found),
        test=sum(trial[-1].test_accuracy for _, trial in found) / len(found),
        times=times,
        ranges=ranges,
    )


def _tuned(configurations: Sequence[Configuration], budget: int) -> TunedMethod:
    soonest: dict[Unit, Configuration | None] = {}
    expected: dict[Unit, float | None] = {}
    chance = 0.0
    for unit in UNITS:
        times = [
            math.inf if c.times[unit] is None else float(c.times[unit] or 0) for c in configurations
        ]
        place = min(range(len(times)), key=times.__getitem__)
        soonest[unit] = configurations[place] if math.isfinite(times[place]) else None
        value, chance = expected_best([-time for time in times], budget)
        expected[unit] = None if value is None else -value
    test, _ = expected_best([configuration.test for configuration in configurations], budget)
    best = max(configurations, key=lambda configuration: configuration.test)
    return TunedMethod(
        best.method, len(configurations), best, test or 0.0, soonest, expected, chance
    )
