"""The text of a plan: verdict, options, layers, conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dropmuon.planning.active_sets import planned_sets
from dropmuon.planning.constants import FLOOR, LEAST_POINTS
from dropmuon.samplers import Progressive
from dropmuon.text import aligned

if TYPE_CHECKING:
    from dropmuon.planning.planner import Option, Plan

__all__ = ["text"]

_WIDEST = 100.0
"""The ratio of its ends beyond which an interval is shown as unknown."""

_LEAST_GAP = 0.0005

_NOISY = 0.15
"""The fit error beyond which the text says that times are uncertain."""

_UNITS = ("", "k", "M", "G", "T")

_CASES = {
    "smooth": "smooth case",
    "1/eps": "(L0, L1) case, 1/eps regime",
    "1/eps^2": "(L0, L1) case, 1/eps^2 regime",
}


def text(plan: Plan) -> str:
    """Return the plan as text: verdict, options, layers, and the conditions of the theorems."""
    return "\n\n".join([_verdict(plan), _options(plan), _layers(plan), _condition(plan)])


def _verdict(plan: Plan) -> str:
    if not plan.costs.known:
        return (
            f"No gain expected: there was time to measure {_cutoffs(plan)} only, so the "
            'uncertainty of predictions is unknown. Use sampler="full", or plan with a larger '
            "budget."
        )
    if plan.smoothness.points < LEAST_POINTS:
        return (
            f"No gain expected: smoothness was estimated at {plan.smoothness.points} of the "
            f"{LEAST_POINTS} points that intervals need, so the uncertainty of predictions is "
            'unknown. Use sampler="full", or plan with a larger budget.'
        )
    if not plan.gain_expected:
        return (
            "No gain expected: no option is predicted to beat full updates by more than its "
            'uncertainty. Use sampler="full".'
        )
    best = plan.best
    return (
        f"Use {best.candidate.family}. Predicted: {_times(best, reused=False)} as fast as full "
        f"updates on fresh batches, {_times(best, reused=True)} with {plan.updates_per_batch} "
        "updates per batch.\n\n"
        "    DropMuon(model, lr=lr, sampler=plan.sampler)  # with the lr given to plan()"
    )


def _times(option: Option, *, reused: bool) -> str:
    found = option.reused if reused else option.fresh
    if not found.bounded:
        return f"{found.speedup:.2f}x (not bounded by the measurements)"
    if found.high > _WIDEST * found.low:
        return f"{found.speedup:.2f}x (unknown)"
    return f"{found.speedup:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _options(plan: Plan) -> str:
    chosen = plan.best if plan.gain_expected else plan.options[0]
    header = ("option", "fresh batches", f"{plan.updates_per_batch} updates per batch", "")
    rows = [
        (
            option.candidate.family,
            _times(option, reused=False),
            _times(option, reused=True),
            "<- recommended" if option is chosen else "",
        )
        for option in plan.options
    ]
    title = (
        f"Predicted time of full updates over that of the option, with an interval; "
        f"{_CASES[plan.applied_regime]}:\n"
    )
    return "\n".join([title + aligned(header, rows), *_remarks(plan)])


def _remarks(plan: Plan) -> Iterator[str]:
    if plan.applied_regime != plan.regime:
        yield (
            f"Asked for the {_CASES[plan.regime]}, but the run showed no (L0, L1) behaviour: "
            "no layer's curvature grew with its gradient. The smooth case applies."
        )
    for option in plan.options:
        if option.candidate.gap >= _LEAST_GAP:
            yield (
                f"{option.candidate.family}: found by a search; the true optimum may take up to "
                f"{option.candidate.gap:.1%} less time."
            )
    if not all(option.fresh.bounded for option in plan.options):
        yield (
            "Not bounded by the measurements: some constants were too small to tell from 0 along "
            f"the run. They count as {FLOOR:.0%} of the largest, and so decide the prediction."
        )
    if len(plan.options) > 1:
        yield (
            f"The best of {len(plan.options)} options is chosen by the numbers that predict it, so "
            "its prediction tends to be too high; intervals do not account for the choice."
        )


def _layers(plan: Plan) -> str:
    seconds, operations = plan.costs.seconds, plan.costs.operations
    columns = [*_constants(plan), _chances(plan)]
    header = ("layer", "forward", "backward", "update", *(title for title, _ in columns))
    rows = [
        (
            name,
            *(
                f"{_milliseconds(spent[i])}, {_count(counted[i])}"
                for spent, counted in (
                    (seconds.forward, operations.forward),
                    (seconds.backward + seconds.weight, operations.backward + operations.weight),
                    (seconds.sharp, operations.sharp),
                )
            ),
            *(cells[i] for _, cells in columns),
        )
        for i, name in enumerate(plan.costs.layers)
    ]
    note = (
        f"Time and operations (of matrix products) by layer, from {_cutoffs(plan)} and "
        f"{plan.costs.rounds} rounds (fit within {plan.costs.fit_error:.0%}), overhead "
        f"{_milliseconds(seconds.overhead)}; smoothness at {_points(plan)}:\n"
    )
    return "\n".join([note + aligned(header, rows), *_caveats(plan)])


def _constants(plan: Plan) -> list[tuple[str, list[str]]]:
    """Return columns of constants, each a title and its cells."""
    estimate, b = plan.smoothness, len(plan.costs.layers)
    everything = tuple(range(b))
    if plan.applied_regime != "smooth":
        general = estimate.generalized
        both = general.constants(0, everything), general.constants(1, everything)
        return [(f"L{k} when all move", [f"{x:.3g}" for x in both[k]]) for k in (0, 1)]
    full = estimate.smooth.constants(0, everything)
    alone = [
        f"{estimate.smooth.l0(i, (i,)):.3g}" if (i,) in estimate.ratios else "" for i in everything
    ]
    return [("L when all move", [f"{x:.3g}" for x in full]), ("L alone", alone)]


def _caveats(plan: Plan) -> Iterator[str]:
    measured, planned = plan.smoothness.ratios, planned_sets(plan.costs.layers)
    missing = [active for active in planned if active not in measured]
    if missing:
        yield (
            f"There was time for {len(planned) - len(missing)} of {len(planned)} sets of layers: "
            "cutoffs that were not measured get the constants of the next lower one that was, and "
            "families with sets that were not measured are left out."
        )
    if plan.costs.fit_error > _NOISY:
        yield (
            f"Times are known only to within {plan.costs.fit_error:.0%}, which makes all intervals "
            "wide; use a quiet machine or a larger budget."
        )
    if plan.smoothness.adamw:
        yield (
            "Constants of layers with parameters on AdamW are in the max-entry norm, whose scale "
            f"differs from that of the others: {', '.join(plan.smoothness.adamw)}."
        )


def _chances(plan: Plan) -> tuple[str, list[str]]:
    """Return the column of the recommended sampler's probabilities."""
    sampler, b = plan.sampler, len(plan.costs.layers)
    moves = sampler.marginals(b)[1]
    if isinstance(sampler, Progressive):
        probabilities = sampler.probabilities(b, 0.0)
        return "P(cutoff), P(moves)", [
            f"{p:.2f}, {q:.2f}" for p, q in zip(probabilities, moves, strict=True)
        ]
    return "P(moves)", [f"{q:.2f}" for q in moves]


def _condition(plan: Plan) -> str:
    smooth, general = plan.full_update_is_optimal, plan.full_update_is_optimal_generalized
    verdicts = {True: "holds", False: "does not hold", None: "no L1 was found"}
    return (
        "Among progressive samplers, full updates are optimal if and only if the first layer has "
        "the largest constant when all move.\n"
        f"  smooth case, constants L0 (Theorem rpt_p1): {verdicts[smooth]}\n"
        "  (L0, L1) case, constants L1 (necessary by Theorem rpt_p1_l0l1, sufficient "
        f"by dropmuon.theory.generalized): {verdicts[general]}\n"
        "Costs per step are measured. Numbers of steps are compared by bounds of theory, with "
        "constants estimated along a short run: they are no promise of how training will go."
    )


def _cutoffs(plan: Plan) -> str:
    times = plan.costs.seconds_by_cutoff
    return f"{int(np.isfinite(times).sum())} of {times.size} cutoffs"


def _points(plan: Plan) -> str:
    count = plan.smoothness.points
    return f"{count} point" if count == 1 else f"{count} points"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _count(operations: float) -> str:
    """Return a count such as 950, 1.2k, 35M."""
    power = min(len(_UNITS) - 1, int(math.log10(max(operations, 1.0)) / 3))
    return f"{operations / 1000**power:.3g}{_UNITS[power]}"
