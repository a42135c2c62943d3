"""The sentences of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dropmuon.lab.analysis import formatting as wording
from dropmuon.lab.report.budget import Group, Tuned

__all__ = ["describe", "headings", "overall", "winner"]


def describe(task: Mapping[str, Any]) -> str:
    """Data and model in a few words."""
    channels = "-".join(str(each) for each in task.get("channels") or [])
    parts = [task.get("dataset"), f"{task.get('model') or ''} {channels}".strip()]
    if task.get("epochs"):
        parts.append(f"{task['epochs']} {'epoch' if task['epochs'] == 1 else 'epochs'}")
    if task.get("batch_norm"):
        parts.append("batch norm")
    if float(task.get("scale") or 1) < 1:
        parts.append(f"scale {task['scale']:g}")
    if task.get("batch_size"):
        parts.append(f"batches of {task['batch_size']}")
    return " · ".join(str(part) for part in parts if part)


def headings(tasks: Sequence[Group]) -> list[str]:
    """A title for every task; tasks that read alike are told apart by what differs."""
    described = [describe(group.task) for group in tasks]
    found = []
    for title, group in zip(described, tasks, strict=True):
        alike = [o.task for t, o in zip(described, tasks, strict=True) if t == title]
        keys = [k for k in group.task if len({repr(task.get(k)) for task in alike}) > 1]
        apart = [f"{key.replace('_', ' ')} {_chosen(group.task[key])}" for key in keys]
        found.append(" · ".join([title, *apart]))
    return found


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
    took = _time(best)
    if len(ranking) == 1:
        return f"{best.method} alone reached {what}: {took} ({tries})."
    second = ranking[1]
    other = f"{second.method} took {_time(second)}"
    if second.chance < best.chance - _CERTAIN:
        missed = wording.share(1 - second.chance)
        other += f" and missed it in {missed} of draws"
        return f"{best.method} was surest to reach {what}: {took}, {other} ({tries})."
    if _alike(best, second):
        both = f"{best.method} and {second.method}"
        return f"{both} reached {what} about equally soon: {took} and {_time(second)} ({tries})."
    return f"{best.method} was soonest at {what}: {took}, {other} ({tries})."


def overall(tasks: Sequence[Group]) -> str:
    """The outcome of all tasks."""
    if len(tasks) == 1:
        return winner(tasks[0])
    rankings = [ranking for ranking in (group.ranking() for group in tasks) if ranking]
    if not rankings:
        return "No method reached a target in any task."
    clear = [r[0].method for r in rankings if len(r) == 1 or not _alike(r[0], r[1])]
    counts = sorted(Counter(clear).items(), key=lambda pair: -pair[1])
    parts = [f"{method} in {count}" for method, count in counts]
    if len(clear) < len(rankings):
        parts.append(f"no method clearly in {len(rankings) - len(clear)}")
    return f"Soonest to target in {len(tasks)} tasks: {', '.join(parts)}."


_CERTAIN = 1e-9
"""Chances nearer than that are one."""


def _alike(one: Tuned, other: Tuned) -> bool:
    """Whether two times differ by no more than seeds do, or by so little that it says nothing."""
    if abs(one.chance - other.chance) > _CERTAIN:
        return False
    least, most = sorted(each.expected_time["seconds"] or 0.0 for each in (one, other))
    if most <= (1 + wording.SAME) * least:
        return True
    ranges = [each.soonest["seconds"] for each in (one, other)]
    known = [each.ranges["seconds"] for each in ranges if each is not None]
    first, second = known[0], known[1]
    return first is not None and second is not None and _overlap(first, second)


def _chosen(setting: object) -> str:
    return "default" if setting is None else wording.value(setting)


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _time(tuned: Tuned) -> str:
    return wording.duration(tuned.expected_time["seconds"])
