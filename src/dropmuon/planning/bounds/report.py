"""The words of a plan by bounds: verdict, options, constants, conditions."""

from __future__ import annotations

from collections.abc import Iterator

from dropmuon.planning.bounds.active_sets import planned_sets
from dropmuon.planning.bounds.comparison import Bounds
from dropmuon.planning.bounds.constants import FLOOR, LEAST_POINTS
from dropmuon.samplers import Progressive
from dropmuon.text import aligned

__all__ = ["caveats", "columns", "condition", "options", "verdict"]

_LEAST_GAP = 0.0005

_CASES = {
    "smooth": "smooth case",
    "1/eps": "(L0, L1) case, 1/eps regime",
    "1/eps^2": "(L0, L1) case, 1/eps^2 regime",
    "stochastic": "stochastic case, 1/eps^4",
}


def verdict(bounds: Bounds) -> str:
    """Return what the bounds recommend, or why nothing."""
    if not bounds.costs.known:
        return (
            f"No gain expected: there was time to measure {bounds.costs.coverage} only, so the "
            'uncertainty of predictions is unknown. Use sampler="full", or plan with a larger '
            "budget."
        )
    if bounds.smoothness.points < LEAST_POINTS:
        return (
            f"No gain expected: smoothness was estimated at {bounds.smoothness.points} of the "
            f"{LEAST_POINTS} points that intervals need, so the uncertainty of predictions is "
            'unknown. Use sampler="full", or plan with a larger budget.'
        )
    best = bounds.best
    if best is bounds.options[0]:
        return (
            "No gain expected: by the bounds, no option beats full updates by more than its "
            'uncertainty. Use sampler="full".'
        )
    return (
        f"By the bounds, which are no measurement of training: use {best.name}. Predicted: "
        f"{best.fresh} as fast as full updates on fresh batches, {best.reused} with "
        f"{bounds.updates_per_batch} updates per batch.\n\n"
        "    DropMuon(model, lr=lr, **plan.settings)  # with the lr given to plan()"
    )


def options(bounds: Bounds) -> str:
    """Return a table of the samplers that were compared, and remarks on it."""
    header = ("option", "fresh batches", f"{bounds.updates_per_batch} updates per batch", "")
    rows = [
        (
            option.name,
            str(option.fresh),
            str(option.reused),
            "<- recommended" if option is bounds.best else "",
        )
        for option in bounds.options
    ]
    title = (
        "Time of full updates over that of the option, by bounds, with an interval; "
        f"{_CASES[bounds.applied_regime]}:\n"
    )
    return "\n".join([title + aligned(header, rows), *_remarks(bounds)])


def _remarks(bounds: Bounds) -> Iterator[str]:
    if bounds.applied_regime != bounds.regime:
        yield (
            f"Asked for the {_CASES[bounds.regime]}, but the run showed no (L0, L1) behaviour: "
            "no layer's curvature grew with its gradient. The smooth case applies."
        )
    if bounds.applied_regime == "stochastic" and bounds.case is not None:
        sigma = bounds.case.per_layer(len(bounds.smoothness.layers))[0]
        yield (
            f"The gap f(X^0) - f* counts as {bounds.case.gap:.3g}, the loss at the start; the "
            f"gradients of layers deviate by {sigma.min():.3g} to {sigma.max():.3g}. The theorem "
            "assumes that no layer's gradient depends on another layer, which no network fulfils."
        )
    for option in bounds.options:
        if option.gap >= _LEAST_GAP:
            yield (
                f"{option.name}: found by a search; the true optimum may take up to "
                f"{option.gap:.1%} less time."
            )
    if not all(option.fresh.bounded for option in bounds.options):
        yield (
            "Not bounded by the measurements: some constants were too small to tell from 0 along "
            f"the run. They count as {FLOOR:.0%} of the largest, and so decide the prediction."
        )
    if len(bounds.options) > 1:
        yield (
            f"The best of {len(bounds.options)} options is chosen by the numbers that predict it, "
            "so its prediction tends to be too high; intervals do not account for the choice."
        )


def columns(bounds: Bounds) -> list[tuple[str, list[str]]]:
    """Return columns by layer, each a title and its cells: constants, and probabilities."""
    estimate, b = bounds.smoothness, len(bounds.smoothness.layers)
    everything = tuple(range(b))
    if bounds.applied_regime == "smooth":
        full = estimate.smooth.constants(0, everything)
        alone = [
            f"{estimate.smooth.l0(i, (i,)):.3g}" if (i,) in estimate.ratios else ""
            for i in everything
        ]
        found = [("L when all move", [f"{x:.3g}" for x in full]), ("L alone", alone)]
    else:
        both = [estimate.generalized.constants(k, everything) for k in (0, 1)]
        found = [(f"L{k} when all move", [f"{x:.3g}" for x in both[k]]) for k in (0, 1)]
    sampler = bounds.best.sampler
    moves = [f"{q:.2f}" for q in sampler.marginals(b)[1]]
    if not isinstance(sampler, Progressive):
        return [*found, ("P(moves)", moves)]
    cutoffs = zip(sampler.probabilities(b, 0.0), moves, strict=True)
    return [*found, ("P(cutoff), P(moves)", [f"{p:.2f}, {q}" for p, q in cutoffs])]


def caveats(bounds: Bounds) -> Iterator[str]:
    """Yield what there was no time to measure, and what cannot be compared."""
    measured, planned = bounds.smoothness.ratios, planned_sets(bounds.smoothness.layers)
    missing = [active for active in planned if active not in measured]
    if missing:
        yield (
            f"There was time for {len(planned) - len(missing)} of {len(planned)} sets of layers: "
            "cutoffs that were not measured get the constants of the next lower one that was, and "
            "families with sets that were not measured are left out."
        )
    if bounds.smoothness.adamw:
        yield (
            "Constants of layers with parameters on AdamW are in the max-entry norm, whose scale "
            f"differs from that of the others: {', '.join(bounds.smoothness.adamw)}."
        )


def condition(bounds: Bounds) -> str:
    """Return whether the paper's condition for full updates holds, and what bounds are worth."""
    smooth, general = bounds.full_update_is_optimal, bounds.full_update_is_optimal_generalized
    verdicts = {True: "holds", False: "does not hold", None: "no L1 was found"}
    return (
        "Among progressive samplers, full updates are optimal if and only if the first layer has "
        "the largest constant when all move.\n"
        f"  smooth case, constants L0 (Theorem rpt_p1): {verdicts[smooth]}\n"
        "  (L0, L1) case, constants L1 (necessary by Theorem rpt_p1_l0l1, sufficient "
        f"by dropmuon.theory.generalized): {verdicts[general]}\n"
        "Costs per step are measured. Numbers of steps are compared by bounds of theory, with "
        "constants estimated along a short run: they are no promise of how training will go. "
        "Without regime, plan() predicts from measured noise."
    )
