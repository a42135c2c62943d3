"""The sentences and commands of a report."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dropmuon.lab import wording
from dropmuon.lab.reporting.budget import Group

__all__ = ["command", "describe", "overall", "winner"]


def describe(task: Mapping[str, Any]) -> str:
    """Data and model in a few words."""
    channels = "-".join(str(each) for each in task.get("channels") or [])
    parts = [task.get("dataset"), f"{task.get('model') or ''} {channels}".strip()]
    if task.get("epochs"):
        parts.append(f"{task['epochs']} epochs")
    if task.get("batch_norm"):
        parts.append("batch norm")
    if float(task.get("scale") or 1) < 1:
        parts.append(f"scale {task['scale']:g}")
    if task.get("batch_size"):
        parts.append(f"batches of {task['batch_size']}")
    return " · ".join(str(part) for part in parts if part)


def winner(group: Group) -> str:
    """The outcome of a task in a sentence."""
    ranking = group.ranking()
    tries = f"the best of {group.budget} configurations"
    if group.budget == 1:
        tries = "one configuration each"
    if not group.methods:
        return "No trial has gone through all epochs yet."
    if not ranking or group.target is None:
        best = max(group.methods, key=lambda each: each.expected_test)
        return f"No target was reached; {best.method} ended highest ({tries})."
    best, what = ranking[0], f"{wording.goal(group.target)} test accuracy"
    took = wording.duration(best.expected_time["seconds"])
    after = ranking[1:2]
    then = [f"{o.method} took {wording.duration(o.expected_time['seconds'])}" for o in after]
    rest = then[0] if then else "no other method got there"
    return f"{best.method} was soonest at {what}: {took}, {rest} ({tries})."


def overall(tasks: Sequence[Group]) -> str:
    """The outcome of all tasks."""
    if len(tasks) == 1:
        return winner(tasks[0])
    first = [group.ranking()[0].method for group in tasks if group.ranking()]
    if not first:
        return "No method reached a target in any task."
    counts = sorted(Counter(first).items(), key=lambda pair: -pair[1])
    parts = [f"{method} in {count}" for method, count in counts]
    return f"Soonest to target in {len(tasks)} tasks: {', '.join(parts)}."


def command(config: Mapping[str, Any], path: Path) -> str:
    """The command line that asks for the same comparison."""
    seeds = [int(seed) for seed in config.get("seeds", [])]
    in_a_row = seeds == list(range(len(seeds)))
    words = ["dropmuon", "compare"]
    for key in ("dataset", "model", "channels", "batch_size", "lr", "momentum", "epochs"):
        if config.get(key) not in (None, [], ""):
            words += [f"--{key.replace('_', '-')}", _joined(config[key])]
    words += ["--seeds", str(len(seeds)) if in_a_row else _joined(seeds)]
    words += ["--methods", _joined(config.get("methods", []))]
    words += ["--targets", _joined(config.get("targets", []))]
    return shlex.join([*words, "--out", f"runs/{path.resolve().name}-again"])


def _joined(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_joined(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
