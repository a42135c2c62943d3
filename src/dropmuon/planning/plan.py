"""Should I use it on my model, and how: measure, estimate, compare, recommend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from dropmuon import theory
from dropmuon.planning import figure, report, storage
from dropmuon.planning.candidates import Candidate, Prediction, candidates, planned_sets, predict
from dropmuon.planning.costs import MeasuredCosts, measure_costs
from dropmuon.planning.problem import Loss, Problem
from dropmuon.planning.smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.samplers import Full, Sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Option", "Plan", "plan"]

OnProgress = Callable[[str, float], None]

_COSTS_SHARE = 0.4
"""Of the time budget, what goes into measuring costs; the rest goes into smoothness."""


@dataclass(frozen=True)
class Option:
    """A candidate and its predictions: a batch per update, and several updates per batch."""

    candidate: Candidate
    fresh: Prediction
    reused: Prediction


@dataclass(frozen=True, eq=False)
class Plan:
    """What was measured of a model, and what theory recommends for it."""

    costs: MeasuredCosts
    smoothness: SmoothnessEstimate
    options: tuple[Option, ...]
    updates_per_batch: int

    @property
    def best(self) -> Option:
        """The option with the least predicted time, on fresh batches."""
        return max(self.options, key=lambda option: option.fresh.speedup)

    @property
    def sampler(self) -> Sampler:
        """The recommended sampler, for `DropMuon(model, sampler=plan.sampler)`."""
        return self.best.candidate.sampler if self.gain_expected else Full()

    @property
    def predicted_speedup(self) -> float:
        """How many times sooner than full Muon, on fresh batches; 1 if no gain is expected."""
        return self.best.fresh.speedup if self.gain_expected else 1.0

    @property
    def gain_expected(self) -> bool:
        """Whether the best option beats full updates by more than its own uncertainty."""
        return self.best.fresh.low > 1.0

    @property
    def full_update_is_optimal(self) -> bool:
        """Theorem "rpt_p1": whether the first layer has the largest constant of the full set."""
        constants = self._full_constants(0)
        return bool(constants[0] >= constants.max())

    @property
    def full_update_is_optimal_generalized(self) -> bool:
        """Theorem "rpt_p1_l0l1": the same of the constants L1, where gradients are large."""
        constants = self._full_constants(1)
        return bool(constants[0] >= constants.max())

    def __str__(self) -> str:
        return report.text(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the file is replaced as a whole or not at all."""
        storage.write(Path(path), self.costs, self.smoothness, self.updates_per_batch)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan that `save` wrote."""
        return recommend(*storage.read(Path(path)))

    def plot(self, path: str | Path | None = None) -> Figure:
        """Costs, constants and probabilities in one figure; saved where a path is given."""
        return figure.draw(self, path)

    def _full_constants(self, alpha: theory.Alpha) -> np.ndarray[Any, np.dtype[np.float64]]:
        everything = tuple(range(len(self.costs.layers)))
        found = self.smoothness.smooth if alpha == 0 else self.smoothness.generalized
        return found.constants(alpha, everything)


def plan(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    budget: float = 60.0,
    points: int = 12,
    updates_per_batch: int = 2,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Plan:
    """Measure a model on this machine and say whether, and how, updating fewer layers pays.

    Args:
        model: what is to be trained; it is left exactly as it is, and so are the generators.
        loss: a function of the model and a batch; it returns a scalar.
        batches: a few batches, used in turn.
        budget: seconds to spend, about.
        points: points of a short run at which smoothness is estimated.
        updates_per_batch: the number of updates that the prediction for reuse assumes.
        seed: of the order of measurements and of the intervals.
        on_progress: called with what is being done and the share of it that is done.
        settings: of the `DropMuon` to plan for, such as lr, momentum, by, policy, example.
    """
    if not budget > 0:
        raise ValueError(f"budget must be positive, got {budget!r}; it is in seconds")
    tell = on_progress or (lambda what, share: None)
    problem = Problem(model, loss, batches)
    costs = measure_costs(
        problem,
        settings,
        _COSTS_SHARE * budget,
        lambda share: tell("measuring costs", share),
        seed=seed,
    )
    estimate = estimate_smoothness(
        problem,
        settings,
        planned_sets(len(costs.layers)),
        points,
        (1 - _COSTS_SHARE) * budget,
        seed=seed,
        on_progress=lambda share: tell("estimating smoothness", share),
    )
    return recommend(costs, estimate, updates_per_batch, seed)


def recommend(
    costs: MeasuredCosts, estimate: SmoothnessEstimate, updates_per_batch: int, seed: int = 0
) -> Plan:
    """The plan that follows from costs and constants."""
    fresh, reused = costs.seconds.fresh(), costs.seconds.reused(updates_per_batch)
    options = tuple(
        Option(each, predict(each, estimate, fresh, seed), predict(each, estimate, reused, seed))
        for each in candidates(estimate, fresh)
    )
    return Plan(costs, estimate, options, updates_per_batch)
