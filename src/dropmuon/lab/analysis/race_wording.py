"""A race in words: who won, by how much, at which quality, and where that does not hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dropmuon.lab.analysis.equal_quality import Distance
from dropmuon.lab.analysis.race import MEASURES, Gap, Measure, RaceResults
from dropmuon.lab.analysis.series import UNITS, Unit
from dropmuon.lab.analysis.wording import SAME, percent

__all__ = [
    "budget",
    "distance",
    "interval",
    "measure_name",
    "quality",
    "race_standing",
    "ratio",
    "second",
    "sentence_of_race",
    "tip",
    "verdict_of_race",
]

Standing = Literal["sooner", "same", "later"]

_STANDINGS: tuple[Standing, ...] = ("sooner", "same", "later")
_BITS = "bits per byte"


def verdict_of_race(results: RaceResults, settings: Mapping[str, Any]) -> str:
    """Return the outcome in one sentence."""
    gap = results.headline
    if gap is None:
        return _nothing(results)
    return f"{sentence_of_race(gap, results)}; {_limits(gap, results, settings)}."


def sentence_of_race(gap: Gap, results: RaceResults) -> str:
    """Return who won, by how much and at which quality, without a full stop."""
    found, base = distance(gap.distance), results.baseline
    cost = "operations" if gap.unit == "operations" else "time"
    only = len(results.methods) == 2
    goal = _goal(gap, results)
    if race_standing(gap.distance) == "sooner":
        return f"{gap.method} won: {base} needs {found} the {cost} to reach its {goal}"
    if race_standing(gap.distance) == "later":
        rival = gap.method if only else f"{gap.method}, the best of the others,"
        return f"{base} won: it needs {found} the {cost} of {rival} to reach the same {goal}"
    rival = gap.method if only else f"{gap.method}, the best challenger,"
    return f"No clear winner: {base} needs {found} the {cost} of {rival} to reach the same {goal}"


def second(results: RaceResults) -> str:
    """Return the same distance in the other measure and the other unit, in a sentence or two."""
    gap = results.headline
    if gap is None:
        return ""
    other_unit: Unit = "seconds" if results.unit == "operations" else "operations"
    other: Measure = "accuracy" if results.measure == "loss" else "loss"
    parts = []
    if found := results.gap(gap.method, unit=other_unit):
        parts.append(f"in {other_unit} it is {distance(found.distance)}")
    if found := results.gap(gap.method, measure=other):
        parts.append(f"for the same {measure_name(other, results)} {distance(found.distance)}")
    joined = ", and ".join(parts)
    said = f"{joined[0].upper()}{joined[1:]}. " if parts else ""
    own, base = results.place(gap.method), results.place(results.baseline)
    finals = [
        f"{measure_name(each, results)} {quality(one.mean, each)} "
        f"({results.baseline} {quality(two.mean, each)})"
        for each in MEASURES
        if (one := own and own.spread(each)) and (two := base and base.spread(each))
    ]
    return f"{said}At {budget(results.rung)} {gap.method} has {' and '.join(finals)}."


def distance(found: Distance) -> str:
    """Return a ratio with its interval, such as 1.70 times (1.52 to 1.91)."""
    inside = interval(found)
    return f"{ratio(found)} times ({inside})" if inside else f"{ratio(found)} times"


def ratio(found: Distance) -> str:
    """Return a ratio, or the bound that is known of it, as text."""
    if found.ratio is not None:
        return f"{found.ratio:.2f}"
    return (
        f"more than {found.least:.2f}" if math.isinf(found.most) else f"less than {found.most:.2f}"
    )


def interval(found: Distance) -> str:
    """Return the interval as text; empty where there is none, or where it says no more."""
    if found.low is None or found.high is None:
        return ""
    if math.isinf(found.high):
        is_told = found.ratio is None and f"{found.low:.2f}" == f"{found.least:.2f}"
        return "" if is_told else f"at least {found.low:.2f}"
    if found.low == 0:
        is_told = found.ratio is None and f"{found.high:.2f}" == f"{found.most:.2f}"
        return "" if is_told else f"at most {found.high:.2f}"
    return f"{found.low:.2f} to {found.high:.2f}"


def race_standing(found: Distance) -> Standing:
    """Return what can be claimed, by the interval or, where there is none, by the ratio.

    "Sooner" means that the method is ahead of the baseline. A bound of exactly 1 is enough: at the
    end of the ladder, a method that is ahead at equal cost can show no more.
    """
    low, high = found.low, found.high
    if low is None or high is None:
        slack = 0.0 if found.ratio is None else SAME
        low, high = found.least - slack, found.most + slack
    if low > 1 or (low == 1 and math.isinf(high)):
        return "sooner"
    return "later" if high < 1 or (high == 1 and low == 0) else "same"


def quality(value: float | None, measure: Measure) -> str:
    """Return a loss or an accuracy as text."""
    if value is None:
        return "–"
    return percent(value) if measure == "accuracy" else f"{value:.3f}"


def measure_name(measure: Measure, results: RaceResults) -> str:
    """Return what is measured on the test set, in words."""
    if measure == "accuracy":
        return "test accuracy"
    return _BITS if results.in_bits else "test loss"


def budget(rung: float) -> str:
    """Return a rung as text."""
    return "the whole budget" if rung == 1 else f"{rung:g} times the budget"


def tip(gap: Gap, results: RaceResults) -> str:
    """Describe one distance in a sentence."""
    cost = "operations" if gap.unit == "operations" else "time"
    where = f"the {_goal(gap, results)} that {gap.method} reaches at {budget(gap.rung)}"
    return f"{results.baseline} needs {distance(gap.distance)} the {cost} for {where}"


def _limits(gap: Gap, results: RaceResults, settings: Mapping[str, Any]) -> str:
    """Return where the outcome differs, or how far it was tried if it is the same everywhere."""
    own = race_standing(gap.distance)
    apart = {
        standing: places
        for standing in _STANDINGS
        if standing != own and (places := _where(standing, gap, results))
    }
    open_places = _where("open", gap, results)
    if apart and own == "same":
        words = {"sooner": "ahead", "later": "behind"}
        said = [f"{words[standing]} {places}" for standing, places in apart.items()]
        return f"{gap.method} is {' and '.join(said)}"
    if apart:
        undecided = f", and is undecided {open_places}" if open_places else ""
        return f"this does not hold {' or '.join(apart.values())}{undecided}"
    if open_places and own != "same":
        return f"this is undecided {open_places}, where only a bound is known, and holds elsewhere"
    ends = f"{results.finished[0]:g} to {results.finished[-1]:g} times the budget"
    size, is_varied = settings.get("batch_size"), any("@" in name for name in results.methods)
    batch = f", and other batches than {size} were not tried" if size and not is_varied else ""
    return f"this holds from {ends}, in both measures and both units{batch}"


def _where(standing: Standing | Literal["open"], gap: Gap, results: RaceResults) -> str:
    """Return at which budgets, in which unit and in which measure this is the outcome."""
    rungs = [
        f"{rung:g}"
        for rung in results.finished
        if rung != gap.rung and _is(standing, results.gap(gap.method, rung=rung))
    ]
    places = [f"at {_listed(rungs)} times the budget"] if rungs else []
    for unit in UNITS:
        if _is(standing, results.gap(gap.method, unit=unit)):
            places.append(f"in {unit}")
    for measure in MEASURES:
        if _is(standing, results.gap(gap.method, measure=measure)):
            places.append(f"in {measure_name(measure, results)}")
    return _listed(places, "or") if places else ""


def _is(standing: Standing | Literal["open"], gap: Gap | None) -> bool:
    if gap is None:
        return False
    found = race_standing(gap.distance)
    is_open = found == "same" and gap.distance.ratio is None
    return is_open if standing == "open" else found == standing and not is_open


def _goal(gap: Gap, results: RaceResults) -> str:
    """Return the quality that both are compared at, in words."""
    name = measure_name(gap.measure, results)
    reached = quality(gap.quality, gap.measure)
    return f"{reached} {name}" if name == _BITS else f"{name} of {reached}"


def _nothing(results: RaceResults) -> str:
    if len(results.methods) == 1:
        return f"{results.baseline} ran alone; there is nothing to race against."
    done = len(results.finished)
    return f"Nothing to compare yet: {done} of {len(results.ladder)} budgets finished, 2 needed."


def _listed(words: Sequence[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
