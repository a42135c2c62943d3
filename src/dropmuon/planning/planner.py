"""Should I use it on my model, and how: measure, estimate, compare, recommend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dropmuon import theory
from dropmuon.checks import whole_number
from dropmuon.planning import figure, report, storage
from dropmuon.planning.candidates import Candidate, candidates, regime_seen, usable
from dropmuon.planning.checks import check_budget
from dropmuon.planning.costs import MeasuredCosts, measure_costs
from dropmuon.planning.predictions import Prediction, Predictor
from dropmuon.planning.problem import Loss, Problem
from dropmuon.planning.sets import planned_sets
from dropmuon.planning.smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.steps import step_rule
from dropmuon.samplers import Full, Sampler
from dropmuon.step.rules import StepRule
from dropmuon.theory.complexity import Regime, check_regime

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Option", "Plan", "plan"]

OnProgress = Callable[[str, float], None]

_BATCHES_SHARE, _COSTS_SHARE = 0.1, 0.4
"""Of the time budget, what goes into drawing batches and, of what is left, into measuring costs."""

_LEAST_LEFT = 0.01
"""So much of the budget each part has in any case."""


@dataclass(frozen=True)
class Option:
    """A candidate and its predictions: a batch per update, and several updates per batch."""

    candidate: Candidate
    fresh: Prediction
    reused: Prediction


@dataclass(frozen=True, eq=False)
class Plan:
    """What was measured of a model, and what theory recommends for it.

    `regime` is the case of theory that was asked for, `seed` that of the intervals.
    """

    costs: MeasuredCosts
    smoothness: SmoothnessEstimate
    options: tuple[Option, ...]
    updates_per_batch: int
    regime: Regime = "smooth"
    seed: int = 0

    @property
    def best(self) -> Option:
        """The option with the least predicted time on fresh batches; first those sure to gain."""
        return max(self.options, key=lambda each: (each.fresh.low > 1.0, each.fresh.speedup))

    @property
    def sampler(self) -> Sampler:
        """The recommended sampler, for `DropMuon(model, lr=lr, sampler=plan.sampler)`."""
        return self.best.candidate.sampler if self.gain_expected else Full()

    @property
    def predicted_speedup(self) -> float:
        """How many times sooner than full Muon, on fresh batches; 1 if no gain is expected."""
        return self.best.fresh.speedup if self.gain_expected else 1.0

    @property
    def gain_expected(self) -> bool:
        """Whether the best option beats full updates by more than its own uncertainty.

        Never with fewer than three points or without a whole round of timing: of its uncertainty
        nothing is known then.
        """
        return self.best.fresh.low > 1.0

    @property
    def applied_regime(self) -> Regime:
        """The regime that the options are compared in: "smooth" where no layer showed any L1."""
        return regime_seen(self.smoothness, self.regime)

    @property
    def step_rule(self) -> StepRule:
        """The theorems' sharp steps, for `DropMuon(model, lr=1.0, sampler=..., step_rule=...)`.

        With the constants of the full set, at the upper ends of their intervals, and no momentum:
        the rule sets it to 0.
        """
        return step_rule(self.smoothness, self.applied_regime)

    @property
    def full_update_is_optimal(self) -> bool:
        """Theorem "rpt_p1": whether the first layer has the largest constant of the full set."""
        constants = usable(self.smoothness, "smooth").progressive_matrix(0)
        return theory.full_update_is_optimal(constants, repair=True)

    @property
    def full_update_is_optimal_generalized(self) -> bool | None:
        """The same of the constants L1, where gradients are large; None where no L1 was seen."""
        if regime_seen(self.smoothness, "1/eps") == "smooth":
            return None
        constants = usable(self.smoothness, "1/eps").progressive_matrix(1)
        return theory.full_update_is_optimal_generalized(constants, repair=True)

    def __str__(self) -> str:
        return report.text(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the file is replaced as a whole or not at all."""
        settings = storage.Settings(self.updates_per_batch, self.seed, self.regime)
        storage.write(Path(path), self.costs, self.smoothness, settings)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan that `save` wrote."""
        costs, estimate, settings = storage.read(Path(path))
        return recommend(costs, estimate, *settings)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Costs, constants and probabilities in one figure; saved where a path is given."""
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
    """Measure a model on this machine and say whether, and how, updating fewer layers pays.

    Args:
        model: what is to be trained; it is left exactly as it is, and so are the generators.
        loss: a function of the model and a batch; it returns a scalar.
        batches: a few batches, used in turn; at most as many as points are drawn.
        budget: seconds to spend, about.
        points: points of a short run at which smoothness is estimated.
        updates_per_batch: the number of updates that the prediction for reuse assumes.
        regime: the case of theory to compare in: "smooth"; or (L0, L1)-smooth layers, where the
            "1/eps" or the "1/eps^2" term of the number of steps dominates.
        seed: of the order of measurements and of the intervals.
        on_progress: called with what is being done and the share of it that is done.
        settings: of the `DropMuon` to plan for, such as lr, momentum, by, policy, example.
    """
    check_budget(budget)
    whole_number("points", points)
    whole_number("updates_per_batch", updates_per_batch)
    check_regime(regime)
    tell = on_progress or (lambda what, share: None)
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
    """The plan that follows from costs and constants."""
    applied = regime_seen(estimate, regime)
    predictor = Predictor(estimate, costs, applied, seed)
    options = tuple(
        Option(each, predictor.predict(each), predictor.predict(each, updates_per_batch))
        for each in candidates(estimate, costs.seconds.fresh(), applied)
    )
    return Plan(costs, estimate, options, updates_per_batch, regime, seed)
