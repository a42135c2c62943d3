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


def verdict_of_race(results: RaceResults, settings: Mapping[str, Any]) -> str:
    """Return the outcome in one sentence."""
    gap = results.headline
    if gap is None:
        return _nothing(results)
    return f"{sentence_of_race(gap, results, settings)}; {_limits(gap, results, settings)}."


def sentence_of_race(gap: Gap, results: RaceResults, settings: Mapping[str, Any]) -> str:
    """Return who won, by how much and at which quality, without a full stop."""
    found, base = distance(gap.distance), results.baseline
    name = measure_name(gap.measure, settings)
    reached = quality(gap.quality, gap.measure, settings)
    cost = "operations" if gap.unit == "operations" else "time"
    only = len(results.methods) == 2
    goal = f"{name} of {reached}"
    if race_standing(gap.distance) == "sooner":
        return f"{gap.method} won: {base} needs {found} the {cost} to reach its {goal}"
    if race_standing(gap.distance) == "later":
        rival = gap.method if only else f"{gap.method}, the best of the others,"
        return f"{base} won: it needs {found} the {cost} of {rival} to reach the same {goal}"
    rival = gap.method if only else f"{gap.method}, the best challenger,"
    return f"No clear winner: {base} needs {found} the {cost} of {rival} to reach the same {goal}"


def second(results: RaceResults, settings: Mapping[str, Any]) -> str:
    """Return the same distance in the other measure and the other unit, in a sentence or two."""
    gap = results.headline
    if gap is None:
        return ""
    other_unit: Unit = "seconds" if results.unit == "operations" else "operations"
    other: Measure = "accuracy" if results.measure == "loss" else "loss"
    parts = []
    if found := results.gap(gap.method, unit=other_unit):
        parts.append(f"in {other_unit} {distance(found.distance)}")
    if found := results.gap(gap.method, measure=other):
        parts.append(f"at equal {measure_name(other, settings)} {distance(found.distance)}")
    own, base = results.place(gap.method), results.place(results.baseline)
    said = f"The same distance {', and '.join(parts)}. " if parts else ""
    if own is None or base is None:
        return said.strip()
    finals = [
        f"{measure_name(each, settings)} {quality(one.mean, each, settings)} against "
        f"{quality(two.mean, each, settings)}"
        for each in MEASURES
        if (one := own.spread(each)) is not None and (two := base.spread(each)) is not None
    ]
    return (
        f"{said}At the same budget {gap.method} has {' and '.join(finals)} of {results.baseline}."
    )


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


def quality(value: float | None, measure: Measure, settings: Mapping[str, Any]) -> str:
    """Return a loss or an accuracy as text; a loss on bytes in bits."""
    if value is None:
        return "–"
    if measure == "accuracy":
        return percent(value)
    return f"{value / math.log(2):.3f}" if _is_text(settings) else f"{value:.3f}"


def measure_name(measure: Measure, settings: Mapping[str, Any]) -> str:
    """Return what is measured on the test set, in words."""
    if measure == "accuracy":
        return "test accuracy"
    return "bits per byte" if _is_text(settings) else "test loss"


def budget(rung: float) -> str:
    """Return a rung as text."""
    return "the whole budget" if rung == 1 else f"{rung:g} times the budget"


def tip(gap: Gap, baseline: str, settings: Mapping[str, Any]) -> str:
    """Describe one distance in a sentence."""
    cost = "operations" if gap.unit == "operations" else "time"
    reached = quality(gap.quality, gap.measure, settings)
    what = f"{measure_name(gap.measure, settings)} of {reached}"
    where = f"{gap.method} reaches at {budget(gap.rung)}"
    return f"{baseline} needs {distance(gap.distance)} the {cost} for the {what} that {where}"


def _limits(gap: Gap, results: RaceResults, settings: Mapping[str, Any]) -> str:
    """Return where the outcome differs, or how far it was tried if it is the same everywhere."""
    own = race_standing(gap.distance)
    rungs = [
        (each.rung, race_standing(each.distance))
        for rung in results.finished
        if rung != gap.rung and (each := results.gap(gap.method, rung=rung)) is not None
    ]
    apart = [f"{rung:g}" for rung, standing in rungs if standing != own]
    places = [f"at {_listed(apart)} times the budget"] if apart else []
    for unit in UNITS:
        found = results.gap(gap.method, unit=unit)
        if found is not None and race_standing(found.distance) != own:
            places.append(f"in {unit}")
    for measure in MEASURES:
        found = results.gap(gap.method, measure=measure)
        if found is not None and race_standing(found.distance) != own:
            places.append(f"in {measure_name(measure, settings)}")
    if places:
        return f"this does not hold {_listed(places, 'or')}"
    ends = f"{results.finished[0]:g} to {results.finished[-1]:g} times the budget"
    size = settings.get("batch_size")
    batch = f", and other batches than {size} were not tried" if size else ""
    return f"this holds from {ends}, in both measures and both units{batch}"


def _nothing(results: RaceResults) -> str:
    if len(results.methods) == 1:
        return f"{results.baseline} ran alone; there is nothing to race against."
    done = len(results.finished)
    return f"Nothing to compare yet: {done} of {len(results.ladder)} budgets finished, 2 needed."


def _listed(words: Sequence[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _is_text(settings: Mapping[str, Any]) -> bool:
    return settings.get("model") == "gpt"
