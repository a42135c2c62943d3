"""`plan`: measure a model, compare samplers, and recommend one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from dropmuon import theory
from dropmuon.checks import whole_number
from dropmuon.planning import figure, report, storage
from dropmuon.planning.active_sets import planned_sets
from dropmuon.planning.candidates import (
    Candidate,
    applicable_regime,
    candidates,
    positive_constants,
)
from dropmuon.planning.constants import LEAST_POINTS, floor_of
from dropmuon.planning.estimated_smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.measured_costs import MeasuredCosts, measure_costs
from dropmuon.planning.predictions import Prediction, Predictor
from dropmuon.planning.problem import Loss, Problem
from dropmuon.planning.timing import check_budget
from dropmuon.samplers import Full, Sampler
from dropmuon.samplers.base import FloatArray
from dropmuon.step.rules import Generalized, Smooth, StepRule
from dropmuon.theory.complexity import Regime, check_regime

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Option", "Plan", "plan", "recommend"]

OnProgress = Callable[[str, float], None]

_BATCHES_SHARE, _COSTS_SHARE = 0.1, 0.4
"""The shares of the budget for drawing batches and, of what is left then, for measuring costs."""

_LEAST_LEFT = 0.01
"""The share of the budget that each part has at least."""


@dataclass(frozen=True)
class Option:
    """A candidate and its predictions, for fresh batches and for several updates per batch."""

    candidate: Candidate
    fresh: Prediction
    reused: Prediction


@dataclass(frozen=True, eq=False)
class Plan:
    """The measurements of a model, and the sampler that theory recommends for it.

    Attributes:
        costs: the measured costs of a step.
        smoothness: the estimated smoothness constants.
        options: the samplers that were compared, full updates first.
        updates_per_batch: the number of updates that predictions for reused batches assume.
        regime: the case of the theory that was requested; see `applied_regime`.
        seed: seed of the intervals.
    """

    costs: MeasuredCosts
    smoothness: SmoothnessEstimate
    options: tuple[Option, ...]
    updates_per_batch: int
    regime: Regime = "smooth"
    seed: int = 0

    @property
    def best(self) -> Option:
        """The fastest option on fresh batches, first among those whose interval lies above 1."""
        return max(self.options, key=lambda each: (each.fresh.low > 1.0, each.fresh.speedup))

    @property
    def sampler(self) -> Sampler:
        """The recommended sampler, for `DropMuon(model, lr=lr, sampler=plan.sampler)`."""
        return self.best.candidate.sampler if self.gain_expected else Full()

    @property
    def predicted_speedup(self) -> float:
        """The time of full updates over that of `sampler`, on fresh batches."""
        return self.best.fresh.speedup if self.gain_expected else 1.0

    @property
    def gain_expected(self) -> bool:
        """Whether the best option beats full updates by more than its own uncertainty.

        Always False with fewer than three points or without a full round of timing, since the
        uncertainty is unknown then.
        """
        return self.best.fresh.low > 1.0

    @property
    def applied_regime(self) -> Regime:
        """The regime in which options are compared: "smooth" if no layer showed any L1."""
        return applicable_regime(self.smoothness, self.regime)

    @property
    def step_rule(self) -> StepRule:
        """The theorems' sharp steps, for `DropMuon(model, lr=1.0, sampler=..., step_rule=...)`.

        The constants are those of the full set, at the upper ends of their intervals. The rule
        sets momentum to 0, as the theorems assume.
        """
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

    def __str__(self) -> str:
        return report.text(self)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, which is replaced as a whole or not at all."""
        settings = storage.Settings(self.updates_per_batch, self.seed, self.regime)
        storage.write(Path(path), self.costs, self.smoothness, settings)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Return the plan that `save` wrote to this file."""
        costs, estimate, settings = storage.read(Path(path))
        return recommend(costs, estimate, *settings)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw costs, constants and probabilities in one figure, and save it if a path is given."""
        return figure.draw(self, path)


def plan(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    budget: float = 60.0,
    points: int = 12,
    updates_per_batch: int = 2,
    regime: Regime = "smooth",
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Plan:
    """Measure a model on this machine, and recommend whether and how to update fewer layers.

    Args:
        model: the model to be trained. It is left exactly as it was, and so are random number
            generators.
        loss: a function of the model and a batch that returns a scalar.
        batches: a few batches, used in turn; at most as many as there are points are drawn.
        budget: approximate time to spend, in seconds.
        points: the number of points of a short run at which smoothness is estimated.
        updates_per_batch: the number of updates that predictions for reused batches assume.
        regime: the case of the theory to compare in: "smooth"; or (L0, L1)-smooth layers, where the
            "1/eps" or the "1/eps^2" term of the number of steps dominates.
        seed: seed of the order of measurements and of the intervals.
        on_progress: called with the name of the current stage and the share of it that is done.
        settings: arguments of the `DropMuon` to plan for, such as lr, momentum, by, policy,
            example.
    """
    check_budget(budget)
    whole_number("points", points)
    whole_number("updates_per_batch", updates_per_batch)
    check_regime(regime)
    tell = on_progress or (lambda stage, share: None)
    end = time.perf_counter() + budget

    def left() -> float:
        return max(_LEAST_LEFT * budget, end - time.perf_counter())

    problem = Problem(model, loss, batches, points, _BATCHES_SHARE * budget)
    costs = measure_costs(
        problem,
        settings,
        _COSTS_SHARE * left(),
        lambda share: tell("measuring costs", share),
        seed=seed,
    )
    estimate = estimate_smoothness(
        problem,
        settings,
        planned_sets(costs.layers),
        points,
        left(),
        seed=seed,
        on_progress=lambda share: tell("estimating smoothness", share),
    )
    return recommend(costs, estimate, updates_per_batch, seed, regime)


def recommend(
    costs: MeasuredCosts,
    estimate: SmoothnessEstimate,
    updates_per_batch: int,
    seed: int = 0,
    regime: Regime = "smooth",
) -> Plan:
    """Return the plan that follows from measured costs and estimated constants."""
    applied = applicable_regime(estimate, regime)
    predictor = Predictor(estimate, costs, applied, seed)
    options = tuple(
        Option(each, predictor.predict(each), predictor.predict(each, updates_per_batch))
        for each in candidates(estimate, costs.seconds.fresh(), applied)
    )
    return Plan(costs, estimate, options, updates_per_batch, regime, seed)


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
