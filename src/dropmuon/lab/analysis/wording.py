"""Results in words: numbers, the speed-up of a method, and the outcome of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dropmuon.lab.analysis.equal_budget import Task, TunedMethod
from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.series import Unit
from dropmuon.output import duration

__all__ = [
    "SAME",
    "amount",
    "cell",
    "comparison",
    "duration",
    "finals",
    "goal",
    "headings",
    "loss",
    "missed",
    "operations",
    "overall",
    "percent",
    "sentence",
    "share",
    "standing",
    "task_title",
    "times",
    "value",
    "winner",
]

SAME = 0.05
"""How close to 1 a ratio must be to count as equal, where there is no interval."""

_CERTAIN = 1e-9
"""Probabilities that differ by less are equal."""


def percent(value: float | None) -> str:
    """Return an accuracy in [0, 1] as text, such as 93.4 %."""
    return "–" if value is None else f"{100 * value:.1f} %"


def share(value: float | None) -> str:
    """Return a share of the baseline's cost as text, such as 71 %."""
    return "–" if value is None else f"{100 * value:.0f} %"


def goal(target: float) -> str:
    """Return a target, which is already in percent, as text."""
    return f"{target:g} %"


def times(value: float | None) -> str:
    """Return a ratio as text, such as 1.23x."""
    return "–" if value is None else f"{value:.2f}x"


def operations(count: float | None) -> str:
    """Return a count of floating-point operations with a prefix, such as 5 GFLOP."""
    if count is None:
        return "–"
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 10.0**power:
            return f"{count / 10.0**power:.3g} {prefix}FLOP"
    return f"{count:.3g} FLOP"


def amount(value: float | None, unit: Unit) -> str:
    """Return seconds or operations as text."""
    return duration(value) if unit == "seconds" else operations(value)


def value(given: object) -> str:
    """Return the value of a setting as text."""
    if isinstance(given, bool):
        return "yes" if given else "no"
    if given is None or given in ("", {}, []):
        return "–"
    if isinstance(given, dict):
        return ", ".join(f"{key} = {value(each)}" for key, each in given.items())
    if isinstance(given, list | tuple):
        return ", ".join(value(each) for each in given)
    return f"{given:g}" if isinstance(given, float) else str(given)


def missed(found: Speedup) -> str:
    """Return how many seeds missed the target, as text; empty if none did."""
    return f"missed {found.seeds - found.reached}/{found.seeds}" if _misses(found) else ""


def cell(found: Speedup | None, *, baseline: bool, separator: str = " ") -> str:
    """Return one cell of a table: the time of the baseline, ratio and interval of the others."""
    if found is None or not found.seeds:
        return "–"
    if baseline or found.ratio is None:
        parts = [amount(found.time, found.unit)] if found.reached else []
        if not baseline and found.reached:
            parts.append("baseline missed" if not found.baseline_reached else "no common seed")
    else:
        parts = [times(found.ratio)]
        if found.low is not None and found.high is not None:
            word = " to " if separator == " " else "–"
            parts.append(f"({found.low:.2f}{word}{found.high:.2f})")
    return separator.join([*parts, missed(found)] if _misses(found) else parts)


def sentence(found: Speedup, baseline: str) -> str:
    """Describe a comparison in one sentence, losses as plainly as wins."""
    what, method = f"{goal(found.target)} {found.split} accuracy", found.method
    if not found.reached:
        other = f"{baseline} reached it on {found.baseline_reached} of {found.baseline_seeds}"
        if not found.baseline_reached:
            other = f"{baseline} missed it, too"
        return f"{method} missed {what} on all of {_count(found.seeds)}; {other}."
    if found.ratio is None:
        where = f"{found.reached} of {_count(found.seeds)}"
        return f"{method} reached {what} ({where}), but {baseline} did not on those seeds."
    seconds, basis = found.unit == "seconds", _basis(found)
    if standing(found) == "same":
        soon = "in about the same time" if seconds else "at about the same cost"
        return f"{method} and {baseline} reached {what} {soon}: {times(found.ratio)} ({basis})."
    if standing(found) == "sooner":
        gain = "as fast as" if seconds else "as efficiently as"
        return f"{method} reached {what} {times(found.ratio)} {gain} {baseline} ({basis})."
    loss, gauge = ("slower", "speed") if seconds else ("more costly", "efficiency")
    ratio = f"{times(found.ratio)} its {gauge}"
    return f"{method} was {loss} than {baseline}: {ratio} to {what} ({basis})."


def standing(found: Speedup) -> Literal["sooner", "same", "later", "missed"]:
    """Return what can be claimed, by the interval or, where there is none, by the ratio."""
    if found.ratio is None:
        return "missed" if not found.reached else "same"
    low = found.ratio - SAME if found.low is None else found.low
    high = found.ratio + SAME if found.high is None else found.high
    if low > 1:
        return "sooner"
    return "later" if high < 1 else "same"


def comparison(final: Final, baseline: Final) -> str:
    """Compare the final test losses and accuracies of two methods in a sentence; text by bits."""
    if final.in_bits:
        return f"It ends at {finals(final)}, {baseline.method} at {finals(baseline)}."
    its = "Its final test accuracy is"
    if final.loss is not None and baseline.loss is not None:
        losses = f"{loss(final)} against {loss(baseline)}"
        its = f"Its final test loss is {losses}, its test accuracy"
    points = 100 * (final.test.mean - baseline.test.mean)
    if abs(points) < 0.05:
        return f"{its} the same, {percent(final.test.mean)}."
    word = "higher" if points > 0 else "lower"
    return (
        f"{its} {abs(points):.1f} points {word}: "
        f"{percent(final.test.mean)} against {percent(baseline.test.mean)}."
    )


def finals(final: Final) -> str:
    """Return where a method ended: test loss and accuracy, or bits per byte for text."""
    if final.in_bits:
        return f"{loss(final)} bits per byte"
    return f"a test loss of {loss(final)} and {percent(final.test.mean)} test accuracy"


def loss(final: Final) -> str:
    """Return the final loss of a method as text."""
    return "–" if final.loss is None else f"{final.loss.mean:.3f}"


def task_title(settings: Mapping[str, Any]) -> str:
    """Return data and model in a few words."""
    channels = "-".join(str(each) for each in settings.get("channels") or [])
    classes = ",".join(str(each) for each in settings.get("classes") or [])
    dataset = f"{settings.get('dataset') or ''}{f', classes {classes}' if classes else ''}"
    parts = [dataset, f"{settings.get('model') or ''} {channels}".strip()]
    if settings.get("init"):
        parts.append(f"from {settings['init']}")
    if epochs := settings.get("epochs"):
        parts.append(f"{epochs} {'epoch' if epochs == 1 else 'epochs'}")
    if settings.get("batch_norm"):
        parts.append("batch norm")
    if settings.get("join_head"):
        parts.append("head in the last layer")
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
    best, what = ranking[0], f"{goal(task.target)} test accuracy"
    took = _time(best)
    if len(ranking) == 1:
        return f"Only {best.method} reached {what}: it took {took} ({tries})."
    second = ranking[1]
    if second.chance < best.chance - _CERTAIN:
        missed = share(1 - second.chance)
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


def _basis(found: Speedup) -> str:
    """Return the interval and the seeds that a ratio is based on."""
    seeds = f"{found.reached} of {_count(found.seeds)}"
    if found.low is not None and found.high is not None:
        seeds = f"{found.low:.2f} to {found.high:.2f}, {seeds}"
    if len(found.ratios) < found.reached:
        seeds += f", compared on {len(found.ratios)}"
    return seeds + ("; the rest missed it" if _misses(found) else "")


def _count(seeds: int) -> str:
    return f"{seeds} seed" if seeds == 1 else f"{seeds} seeds"


def _misses(found: Speedup) -> bool:
    return found.reached < found.seeds


def _alike(one: TunedMethod, other: TunedMethod) -> bool:
    """Return whether two times differ by no more than seeds do, or by too little to matter."""
    if abs(one.chance - other.chance) > _CERTAIN:
        return False
    least, most = sorted(each.expected_time["seconds"] or 0.0 for each in (one, other))
    if most <= (1 + SAME) * least:
        return True
    ranges = [each.soonest["seconds"] for each in (one, other)]
    known = [each.ranges["seconds"] for each in ranges if each is not None]
    first, second = known[0], known[1]
    return first is not None and second is not None and _overlap(first, second)


def _chosen(setting: object) -> str:
    return "default" if setting is None else value(setting)


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _time(tuned: TunedMethod) -> str:
    return duration(tuned.expected_time["seconds"])
