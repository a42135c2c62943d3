"""The steps of the theorems, with the constants of a plan."""

from __future__ import annotations

import numpy as np

from dropmuon.planning.constants import least_of
from dropmuon.planning.resampling import LEAST_POINTS
from dropmuon.planning.smoothness import SmoothnessEstimate
from dropmuon.samplers.base import FloatArray
from dropmuon.step.rules import Generalized, Smooth, StepRule
from dropmuon.theory import Regime

__all__ = ["step_rule"]


def step_rule(estimate: SmoothnessEstimate, regime: Regime) -> StepRule:
    """Sharp steps of 1 / L_i, or 1 / (L0_i + L1_i dual) in the (L0, L1) regimes; no momentum.

    The constants are those of the full set, which bound those of all sets. The theorems allow the
    longer steps 1 / L_{i,S}, and predictions are of those; but what a short run shows of a small
    set bounds no long step away from that run, and training with them diverged. For the same reason
    the upper ends of the intervals are taken, where they are known. The theorems are about steps
    along the gradient itself: with momentum, full updates diverged, too.

    The planner measures a layer of several parameters by the largest of their norms and the sum of
    their duals, step rules by roots of sums of squares, which are larger and smaller: L and L0 hold
    there, too, L1 up to the root of the number of parameters.
    """
    everything = tuple(range(len(estimate.layers)))
    known = estimate.points >= LEAST_POINTS
    found, smooth, general = estimate.intervals, estimate.smooth, estimate.generalized

    def upper(ends: FloatArray, seen: FloatArray) -> FloatArray:
        return ends[:, 1] if known else seen

    flat = smooth.constants(0, everything)
    least = least_of(flat.max())
    rule: StepRule
    if regime == "smooth":
        rule = Smooth(np.maximum(upper(found.smooth[everything], flat), least))
    else:
        l0 = upper(found.l0[everything], general.constants(0, everything))
        l1 = upper(found.l1[everything], general.constants(1, everything))
        rule = Generalized(np.maximum(l0, least), l1)
    rule.momentum = 0.0
    return rule
