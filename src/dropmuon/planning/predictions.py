"""What theory predicts for a sampler: how many times sooner than full updates, and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dropmuon import theory
from dropmuon.planning.candidates import Candidate
from dropmuon.planning.constants import (
    FLOOR,
    LEAST_POINTS,
    Resampled,
    floored,
    membership,
    resampled_generalized,
    resampled_smooth,
)
from dropmuon.planning.estimated_smoothness import SmoothnessEstimate
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.samplers import Full
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import Regime
from dropmuon.theory.distributions import Sampling, marginals_of

__all__ = ["Prediction", "Predictor"]

_RESAMPLES = 100

_DECIDES = 0.01
"""The floor under constants decides where a lower one would change a prediction by this share."""


@dataclass(frozen=True)
class Prediction:
    """How many times sooner than with full updates, by theory, with an interval.

    The interval comes from speed-ups under resampled points, see `resampling`, and resampled
    rounds of timing. Unlike a constant a speed-up may be off to either side, so it is symmetric, in
    the logarithm (Hall, "On symmetric bootstrap confidence intervals", J. R. Statist. Soc. B 50,
    1988), and wider by how far fitted costs are off from the measured ones. It is of this sampler
    as it is: that it was chosen as the best of several, by the same points, is not in it.

    `bounded` is False where constants seemed so small that the floor under them decides.
    """

    speedup: float
    low: float
    high: float
    bounded: bool = True


class Predictor:
    """Compares samplers with full updates, under what was measured and under resamples of it."""

    def __init__(
        self, estimate: SmoothnessEstimate, costs: MeasuredCosts, regime: Regime, seed: int = 0
    ) -> None:
        self._estimate, self._costs, self._regime = estimate, costs, regime
        self._num_layers = len(estimate.layers)
        self._l1: Resampled | None = None
        if regime == "smooth":
            self._l0 = resampled_smooth(estimate.ratios, self._num_layers, _RESAMPLES, seed)
        else:
            self._l0, self._l1 = resampled_generalized(
                estimate.duals, estimate.ratios, _RESAMPLES, seed
            )

    def predict(self, candidate: Candidate, updates_per_batch: int = 1) -> Prediction:
        """Time of full updates over that of the candidate.

        Time is the number of steps (Theorems "rt_smooth_iter" and "rt_l0l1_iter") times the
        expected cost of a step: `theory.against_full`, under many constants and costs at once.
        """
        sampler = candidate.sampler
        if isinstance(sampler, Full):
            return Prediction(1.0, 1.0, 1.0)
        full = {tuple(range(self._num_layers)): 1.0}
        fewer = self._steps(full) / self._steps(sampler)
        cheaper = self._price(full, updates_per_batch) / self._price(sampler, updates_per_batch)
        lower = self._steps(full, FLOOR / 10) / self._steps(sampler, FLOOR / 10)
        bounded = bool(abs(lower[0] / fewer[0] - 1.0) < _DECIDES)
        return self._interval(cheaper * fewer, bounded=bounded)

    def _interval(self, speedups: FloatArray, *, bounded: bool) -> Prediction:
        """Symmetric in the logarithm, by how much resamples differ from what was measured."""
        best = float(speedups[0])
        if self._estimate.points < LEAST_POINTS or not self._costs.known:
            return Prediction(best, 0.0, math.inf, bounded)
        off = np.abs(np.log(speedups[1:] / best))
        factor = math.exp(np.quantile(off, self._estimate.confidence))
        factor *= 1.0 + self._costs.fit_error
        return Prediction(best, best / factor, best * factor, bounded)

    def _price(self, sampler: Sampling, updates_per_batch: int) -> FloatArray:
        """The expected cost of a step (`theory.expected_cost`), as measured and as resampled."""
        reached, moves = marginals_of(sampler, self._num_layers, 0.0)
        found = []
        for each in (self._costs.seconds, *self._costs.resampled):
            costs = each.reused(updates_per_batch)
            found.append(costs.overhead + costs.layer @ reached + costs.sharp @ moves)
        measured, resampled = found[:1], found[1:] or found
        return np.array(measured + [resampled[k % len(resampled)] for k in range(_RESAMPLES)])

    def _steps(self, sampler: Sampling, least: float = FLOOR) -> FloatArray:
        """Steps up to common factors, for all points and for each resample."""
        distribution = theory.distribution_of(sampler, self._num_layers)
        p = np.array(list(distribution.values()))
        # the full set comes along, for it has the largest constants, the scale of the least ones
        sets = [*distribution, tuple(range(self._num_layers))]
        inside = membership(sets, self._num_layers)
        l0 = floored(_rows(self._l0, sets), inside, least)[:, :-1]
        if self._l1 is None:
            progress = p @ np.divide(0.5, l0, out=np.zeros_like(l0), where=inside[:-1])
            steps: FloatArray = 1.0 / progress.min(axis=-1)
            return steps
        l1 = floored(_rows(self._l1, sets), inside, least)[:, :-1]
        reached, e0, e1 = p @ inside[:-1], p @ l0, p @ l1
        weights = reached**2 / e1
        steps = 1.0 / weights.min(axis=-1)
        if self._regime == "1/eps^2":
            steps = steps**2 * (weights**2 * e0 / reached**2).sum(axis=-1)
        return steps


def _rows(draws: Resampled, sets: Sequence[ActiveSet]) -> FloatArray:
    """Draws as an array (1 + resamples, sets, layers)."""
    return np.stack([draws[active] for active in sets], axis=1)
