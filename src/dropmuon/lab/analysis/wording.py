"""Numbers as people write them, and what a speed-up is called in words."""

from __future__ import annotations

from typing import Literal

from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.series import Unit

__all__ = [
    "SAME",
    "amount",
    "cell",
    "comparison",
    "duration",
    "goal",
    "missed",
    "operations",
    "percent",
    "sentence",
    "share",
    "standing",
    "times",
    "value",
]

SAME = 0.05
"""How near to 1 a ratio is called the same where there is no interval to tell."""


def percent(value: float | None) -> str:
    """An accuracy in [0, 1], such as 93.4 %."""
    return "–" if value is None else f"{100 * value:.1f} %"


def share(value: float | None) -> str:
    """A cost beside the baseline's, such as 71 %."""
    return "–" if value is None else f"{100 * value:.0f} %"


def goal(target: float) -> str:
    """A target, which is in percent already."""
    return f"{target:g} %"


def times(value: float | None) -> str:
    """A ratio, such as 1.23x."""
    return "–" if value is None else f"{value:.2f}x"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that makes them short."""
    if seconds is None:
        return "–"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def operations(count: float | None) -> str:
    """Floating-point operations with a prefix."""
    if count is None:
        return "–"
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 10.0**power:
            return f"{count / 10.0**power:.3g} {prefix}FLOP"
    return f"{count:.3g} FLOP"


def amount(value: float | None, unit: Unit) -> str:
    """Time in either unit."""
    return duration(value) if unit == "seconds" else operations(value)


def value(given: object) -> str:
    """A value of a configuration, for people."""
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
    """How many seeds missed the target, or nothing where none did."""
    return f"missed {found.seeds - found.reached}/{found.seeds}" if _misses(found) else ""


def cell(found: Speedup | None, *, baseline: bool, separator: str = " ") -> str:
    """One target in a table: the baseline shows its time, the others ratio and interval."""
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
    """A comparison in one plain sentence, losses said as plainly as wins."""
    what, method = f"{goal(found.target)} {found.split} accuracy", found.method
    if not found.reached:
        other = f"{baseline} reached it on {found.baseline_reached} of {found.baseline_seeds}"
        if not found.baseline_reached:
            other = f"{baseline} missed it, too"
        return f"{method} missed {what} on all of {_count(found.seeds)}; {other}."
    if found.ratio is None:
        where = f"{found.reached} of {_count(found.seeds)}"
        return f"{method} reached {what} ({where}), and {baseline} did not where it did."
    seconds, basis = found.unit == "seconds", _basis(found)
    if standing(found) == "same":
        soon = "about equally soon" if seconds else "at about the same cost"
        return f"{method} and {baseline} reached {what} {soon}: {times(found.ratio)} ({basis})."
    if standing(found) == "sooner":
        gain = "sooner" if seconds else "more cheaply"
        return f"{method} reached {what} {times(found.ratio)} {gain} than {baseline} ({basis})."
    slow = "slower" if seconds else "more costly"
    return (
        f"{method} was {slow} than {baseline}: {times(found.ratio)} its speed to {what} ({basis})."
    )


def standing(found: Speedup) -> Literal["sooner", "same", "later", "missed"]:
    """What the interval, or the ratio where there is none, lets one say."""
    if found.ratio is None:
        return "missed" if not found.reached else "same"
    low = found.ratio - SAME if found.low is None else found.low
    high = found.ratio + SAME if found.high is None else found.high
    if low > 1:
        return "sooner"
    return "later" if high < 1 else "same"


def comparison(final: Final, baseline: Final) -> str:
    """Where two methods end, in test accuracy."""
    points = 100 * (final.test.mean - baseline.test.mean)
    if abs(points) < 0.05:
        return f"Its final test accuracy is the same, {percent(final.test.mean)}."
    word = "higher" if points > 0 else "lower"
    return (
        f"Its final test accuracy is {abs(points):.1f} points {word}: "
        f"{percent(final.test.mean)} against {percent(baseline.test.mean)}."
    )


def _basis(found: Speedup) -> str:
    """On what a ratio rests."""
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
