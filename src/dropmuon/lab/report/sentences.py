"""The sentences of a report on several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dropmuon.lab.analysis import formatting
from dropmuon.lab.report.equal_budget import Task, TunedMethod

__all__ = ["headings", "overall", "task_title", "winner"]


def task_title(settings: Mapping[str, Any]) -> str:
    """Return data and model in a few words."""
    channels = "-".join(str(each) for each in settings.get("channels") or [])
    parts = [settings.get("dataset"), f"{settings.get('model') or ''} {channels}".strip()]
    if epochs := settings.get("epochs"):
        parts.append(f"{epochs} {'epoch' if epochs == 1 else 'epochs'}")
    if settings.get("batch_norm"):
        parts.append("batch norm")
    if float(settings.get("scale") or 1) < 1:
        parts.append(f"scale {settings['scale']:g}")
    if settings.get("batch_size"):
        parts.append(f"batches of {settings['batch_size']}")
    return " · ".join(str(part) for part in parts if part)


def headings(tasks: Sequence[Task]) -> list[str]:
    """Return a title for every task; tasks with the same title also show what differs."""
    titles = [task_title(task.settings) for task in tasks]
    found = []
    for title, task in zip(titles, tasks, strict=True):
        alike = [other.settings for t, other in zip(titles, tasks, strict=True) if t == title]
        keys = [k for k in task.settings if len({repr(settings.get(k)) for settings in alike}) > 1]
        apart = [f"{key.replace('_', ' ')} {_chosen(task.settings[key])}" for key in keys]
        found.append(" · ".join([title, *apart]))
    return found


def winner(task: Task) -> str:
    """Return the outcome of a task in a sentence."""
    ranking = task.ranking()
    tries = f"the best of {task.budget} configurations"
    if task.budget == 1:
        tries = "one configuration each"
    if not task.methods:
        return "No trial is finished yet."
    if not ranking or task.target is None:
        best = max(task.methods, key=lambda each: each.expected_test)
        return f"No target was reached; {best.method} had the highest final accuracy ({tries})."
    best, what = ranking[0], f"{formatting.goal(task.target)} test accuracy"
    took = _time(best)
    if len(ranking) == 1:
        return f"Only {best.method} reached {what}: it took {took} ({tries})."
    second = ranking[1]
    if second.chance < best.chance - _CERTAIN:
        missed = formatting.share(1 - second.chance)
        other = f"{second.method} took {_time(second)} but missed it in {missed} of draws"
        return f"{best.method} reached {what} most reliably, in {took}; {other} ({tries})."
    if _alike(best, second):
        both = f"{best.method} and {second.method}"
        return (
            f"{both} reached {what} in about the same time: {took} and {_time(second)} ({tries})."
        )
    return (
        f"{best.method} was the first to reach {what}: {took}, against {_time(second)} for "
        f"{second.method} ({tries})."
    )


def overall(tasks: Sequence[Task]) -> str:
    """Return the outcome of all tasks in a sentence."""
    if len(tasks) == 1:
        return winner(tasks[0])
    rankings = [ranking for ranking in (task.ranking() for task in tasks) if ranking]
    if not rankings:
        return "No method reached a target in any task."
    clear = [r[0].method for r in rankings if len(r) == 1 or not _alike(r[0], r[1])]
    counts = sorted(Counter(clear).items(), key=lambda pair: -pair[1])
    parts = [f"{method} in {count}" for method, count in counts]
    if len(clear) < len(rankings):
        parts.append(f"no clear winner in {len(rankings) - len(clear)}")
    return f"First to reach the target in {len(tasks)} tasks: {', '.join(parts)}."


_CERTAIN = 1e-9
"""Probabilities that differ by less are equal."""


def _alike(one: TunedMethod, other: TunedMethod) -> bool:
    """Return whether two times differ by no more than seeds do, or by too little to matter."""
    if abs(one.chance - other.chance) > _CERTAIN:
        return False
    least, most = sorted(each.expected_time["seconds"] or 0.0 for each in (one, other))
    if most <= (1 + formatting.SAME) * least:
        return True
    ranges = [each.soonest["seconds"] for each in (one, other)]
    known = [each.ranges["seconds"] for each in ranges if each is not None]
    first, second = known[0], known[1]
    return first is not None and second is not None and _overlap(first, second)


def _chosen(setting: object) -> str:
    return "default" if setting is None else formatting.value(setting)


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _time(tuned: TunedMethod) -> str:
    return formatting.duration(tuned.expected_time["seconds"])
