"""Samplers compared by the paper's bounds on the number of steps, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dropmuon import theory
from dropmuon.planning.bounds.candidates import applicable_regime, candidates, positive_constants
from dropmuon.planning.bounds.constants import LEAST_POINTS, floor_of
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate
from dropmuon.planning.bounds.predictions import Predictor
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.planning.options import Option
from dropmuon.samplers.base import FloatArray
from dropmuon.step.rules import Generalized, Smooth, StepRule
from dropmuon.theory.complexity import Regime

__all__ = ["Bounds", "best_of"]


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
