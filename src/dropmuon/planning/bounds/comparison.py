"""Samplers compared by the paper's bounds on the number of steps, what follows, and its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dropmuon import theory
from dropmuon.output import aligned
from dropmuon.planning.bounds.candidates import (
    Predictor,
    applicable_regime,
    candidates,
    positive_constants,
)
from dropmuon.planning.bounds.constants import FLOOR, LEAST_POINTS, floor_of
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate
from dropmuon.planning.bounds.probe import planned_sets
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.planning.options import Option
from dropmuon.samplers import Progressive
from dropmuon.samplers.base import FloatArray
from dropmuon.step.rules import Generalized, Smooth, StepRule
from dropmuon.theory.complexity import Regime

__all__ = ["Bounds", "best_of", "caveats", "columns", "condition", "options", "verdict"]


_LEAST_GAP = 0.0005
_CASES = {
    "smooth": "smooth case",
    "1/eps": "(L0, L1) case, 1/eps regime",
    "1/eps^2": "(L0, L1) case, 1/eps^2 regime",
    "stochastic": "stochastic case, 1/eps^4",
}


@dataclass(frozen=True, eq=False)
class Bounds:
    """The samplers of a model, compared by bounds.

    Attributes:
        costs: the measured costs of a step.
        smoothness: the estimated smoothness constants.
        regime: the case of the theory that was requested; see `applied_regime`.
        updates_per_batch: the number of updates that predictions for reused batches assume.
        seed: seed of the intervals.
        case: what the regime "stochastic" needs beside smoothness.
    """

    costs: MeasuredCosts
    smoothness: SmoothnessEstimate
    regime: Regime = "smooth"
    updates_per_batch: int = 2
    seed: int = 0
    case: theory.StochasticCase | None = None

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The best sampler of every family, full updates first."""
        regime = self.applied_regime
        predictor = Predictor(self.smoothness, self.costs, regime, self.seed, self.case)
        found = candidates(self.smoothness, self.costs.seconds.fresh(), regime, self.case)
        return tuple(
            Option(
                each.family,
                {"sampler": each.sampler},
                predictor.predict(each),
                predictor.predict(each, self.updates_per_batch),
                each.gap,
            )
            for each in found
        )

    @property
    def best(self) -> Option:
        """The fastest option that beats full updates by more than its uncertainty, or those.

        Always full updates with fewer than three points or without a full round of timing, since
        the uncertainty is unknown then.
        """
        return best_of(self.options)

    @property
    def applied_regime(self) -> Regime:
        """The regime in which options are compared: "smooth" if no layer showed any L1."""
        return applicable_regime(self.smoothness, self.regime)

    @property
    def step_rule(self) -> StepRule:
        """The theorems' sharp steps, with the constants of the full set. Momentum is 0."""
        if self.applied_regime == "stochastic":
            raise ValueError(
                "step_rule depends on the number of steps in regime 'stochastic', got none; make "
                "rules.Horizon(steps, theory.admissible_eta(...)) with plan.bounds.case"
            )
        return _step_rule(self.smoothness, self.applied_regime)

    @property
    def full_update_is_optimal(self) -> bool:
        """Theorem "rpt_p1": whether the first layer has the largest constant of the full set."""
        constants = positive_constants(self.smoothness, "smooth").progressive_matrix(0)
        return theory.full_update_is_optimal(constants, repair=True)

    @property
    def full_update_is_optimal_generalized(self) -> bool | None:
        """The same for the constants L1, where gradients are large; None if no layer showed any."""
        if applicable_regime(self.smoothness, "1/eps") == "smooth":
            return None
        constants = positive_constants(self.smoothness, "1/eps").progressive_matrix(1)
        return theory.full_update_is_optimal_generalized(constants, repair=True)


def best_of(options: Sequence[Option]) -> Option:
    """Return the fastest option whose interval lies above 1, or the first: full updates."""
    sure = [option for option in options if option.fresh.low > 1.0]
    return max(sure, key=lambda option: option.fresh.speedup, default=options[0])


def _step_rule(estimate: SmoothnessEstimate, regime: Regime) -> StepRule:
    """Make sharp steps of 1 / L_i, or 1 / (L0_i + L1_i dual) in the (L0, L1) regimes.

    The constants are those of the full set, which bound those of all sets. The theorems allow the
    longer steps 1 / L_{i,S}, and predictions assume them; but a short run says little about long
    steps of a small set away from that run. For the same reason the upper ends of the intervals
    are used where they are known. Momentum is 0: the theorems are about steps along the gradient.

    Estimates use the norm of a layer that the planned optimizer has, by default the largest of its
    parameters' norms, while the rules use the root of the sum of squares, which is larger, with a
    smaller dual. L and L0 are also bounds for the rules, L1 up to the root of the number of
    parameters.
    """
    everything = tuple(range(len(estimate.layers)))
    known = estimate.points >= LEAST_POINTS
    found, smooth, general = estimate.intervals, estimate.smooth, estimate.generalized

    def upper(ends: FloatArray, seen: FloatArray) -> FloatArray:
        return ends[:, 1] if known else seen

    flat = smooth.constants(0, everything)
    floor = floor_of(flat.max())
    rule: StepRule
    if regime == "smooth":
        rule = Smooth(np.maximum(upper(found.smooth[everything], flat), floor))
    else:
        l0 = upper(found.l0[everything], general.constants(0, everything))
        l1 = upper(found.l1[everything], general.constants(1, everything))
        rule = Generalized(np.maximum(l0, floor), l1)
    rule.momentum = 0.0
    return rule


def verdict(bounds: Bounds) -> str:
    """Return what the bounds recommend, or why nothing."""
    if not bounds.costs.known:
        return (
            f"No verdict yet: there was time to measure {bounds.costs.coverage} only, so the "
            "uncertainty of predictions is unknown. Plan with a larger budget; until then, use "
            'sampler="full".'
        )
    if bounds.smoothness.points < LEAST_POINTS:
        return (
            f"No verdict yet: smoothness was estimated at {bounds.smoothness.points} of the "
            f"{LEAST_POINTS} points that intervals need, so the uncertainty of predictions is "
            'unknown. Plan with a larger budget; until then, use sampler="full".'
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
