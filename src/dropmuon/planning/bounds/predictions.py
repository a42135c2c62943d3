"""Speed-ups over full updates as bounds predict them, with intervals.

An interval comes from speed-ups under resampled points, see `constants`, and resampled rounds of
timing. Unlike a constant, a speed-up may be off to either side, so the interval is symmetric in the
logarithm (Hall, "On symmetric bootstrap confidence intervals", J. R. Statist. Soc. B 50, 1988). It
is widened by the error of the fitted costs. It does not account for the sampler having been chosen
as the best of several, by the same points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dropmuon import theory
from dropmuon.planning.bounds.candidates import Candidate
from dropmuon.planning.bounds.constants import (
    FLOOR,
    LEAST_POINTS,
    Resampled,
    floored,
    resampled_generalized,
    resampled_smooth,
)
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.planning.options import Prediction
from dropmuon.samplers import Full
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import Regime
from dropmuon.theory.costs import Sampling, members

__all__ = ["Predictor"]

_RESAMPLES = 100

_DECIDES = 0.01
"""The floor under constants decides if a lower one would change a prediction by this share."""


class Predictor:
    """A comparison of samplers with full updates, under measurements and resamples of them."""

    def __init__(
        self,
        estimate: SmoothnessEstimate,
        costs: MeasuredCosts,
        regime: Regime,
        seed: int = 0,
        case: theory.StochasticCase | None = None,
    ) -> None:
        self._estimate, self._costs, self._regime, self._case = estimate, costs, regime, case
        self._num_layers = len(estimate.layers)
        self._l1: Resampled | None = None
        if regime == "smooth":
            self._l0 = resampled_smooth(estimate.ratios, self._num_layers, _RESAMPLES, seed)
        else:
            self._l0, self._l1 = resampled_generalized(
                estimate.duals, estimate.ratios, _RESAMPLES, seed
            )

    def predict(self, candidate: Candidate, updates_per_batch: int = 1) -> Prediction:
        """Return the time of full updates over that of the candidate.

        Time is the number of steps (`theory.relative_iterations`) times the expected cost of a step
        (`theory.expected_cost`), as in `theory.against_full`, under many constants and costs.
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
        """Return the first speed-up with an interval from its distance to the others."""
        best = float(speedups[0])
        if self._estimate.points < LEAST_POINTS or not self._costs.known:
            return Prediction(best, 0.0, math.inf, bounded)
        off = np.abs(np.log(speedups[1:] / best))
        factor = math.exp(np.quantile(off, self._estimate.confidence))
        factor *= 1.0 + self._costs.fit_error
        return Prediction(best, best / factor, best * factor, bounded)

    def _price(self, sampler: Sampling, updates_per_batch: int) -> FloatArray:
        """Return the expected cost of a step, as measured and as resampled."""
        found = [
            theory.expected_cost(sampler, each.reused(updates_per_batch))
            for each in (self._costs.seconds, *self._costs.resampled)
        ]
        measured, resampled = found[:1], found[1:] or found
        return np.array(measured + [resampled[k % len(resampled)] for k in range(_RESAMPLES)])

    def _steps(self, sampler: Sampling, floor: float = FLOOR) -> FloatArray:
        """Return the number of steps up to a common factor, of all points and of each resample."""
        distribution = theory.distribution_of(sampler, self._num_layers)
        # The full set has the largest constants, which the floor is a share of.
        sets = [*distribution, tuple(range(self._num_layers))]
        inside = members(sets, self._num_layers)
        l0 = floored(_tables(self._l0, sets), inside, floor)[:, :-1]
        l1 = None
        if self._l1 is not None:
            l1 = floored(_tables(self._l1, sets), inside, floor)[:, :-1]
        return theory.relative_iterations(distribution, l0, l1, self._regime, self._case)


def _tables(resampled: Resampled, sets: Sequence[ActiveSet]) -> FloatArray:
    """Return an array (1 + resamples, sets, layers)."""
    return np.stack([resampled[active] for active in sets], axis=1)
