"""The best sampler of each family for a model, and the speed-up over full updates of each.

An interval comes from speed-ups under resampled points, see `constants`, and resampled rounds of
timing. Unlike a constant, a speed-up may be off to either side, so the interval is symmetric in the
logarithm (Hall, "On symmetric bootstrap confidence intervals", J. R. Statist. Soc. B 50, 1988). It
is widened by the error of the fitted costs. It does not account for the sampler having been chosen
as the best of several, by the same points.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dropmuon import theory
from dropmuon.planning.bounds.constants import (
    FLOOR,
    LEAST_POINTS,
    Resampled,
    floored,
    positive_smoothness,
    resampled_generalized,
    resampled_smooth,
)
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate
from dropmuon.planning.bounds.probe import (
    block_sizes,
    nice_sizes,
    position_blocks,
    suffixes,
    windows,
)
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.planning.options import Prediction
from dropmuon.samplers import Full, Nice, Partition, Progressive, Sampler, Submodel, uniform
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import Regime
from dropmuon.theory.costs import Sampling, members

__all__ = ["Candidate", "Predictor", "applicable_regime", "candidates", "positive_constants"]

_SHOWS = 0.01
"""L1 counts if, at the largest gradient, its term is this share of the largest ratio."""

_NEGLIGIBLE = 1e-12
"""Probabilities below this are rounding errors of the linear program."""

_FEW_LAYERS = 24
"""Up to this many layers, the search in the 1/eps^2 regime also starts from random points."""


_RESAMPLES = 100
_DECIDES = 0.01
"""The floor under constants decides if a lower one would change a prediction by this share."""


@dataclass(frozen=True)
class Candidate:
    """The best sampler of a family.

    `gap` is the share of its cost by which a better one could be cheaper: 0 where it is proven
    optimal.
    """

    family: str
    sampler: Sampler
    gap: float = 0.0


def applicable_regime(estimate: SmoothnessEstimate, regime: Regime) -> Regime:
    """Return the given regime, or "smooth" if no layer shows any L1."""
    b = len(estimate.layers)
    everything = tuple(range(b))
    part = estimate.generalized.constants(1, everything) * estimate.duals.max(axis=0)
    shows = part > _SHOWS * estimate.smooth.constants(0, everything)
    return regime if shows.any() else "smooth"


def positive_constants(estimate: SmoothnessEstimate, regime: Regime) -> theory.Smoothness:
    """Return the constants of a regime for all known sets, made positive."""
    found = estimate.smooth if regime == "smooth" else estimate.generalized
    l0, l1 = ({s: found.constants(alpha, s) for s in found.sets} for alpha in (0, 1))
    return positive_smoothness(l0, None if regime == "smooth" else l1)


def candidates(
    estimate: SmoothnessEstimate,
    costs: theory.Costs,
    regime: Regime = "smooth",
    case: theory.StochasticCase | None = None,
) -> list[Candidate]:
    """Return full updates and the best sampler of every family whose sets were all measured."""
    found = [Candidate("full updates", Full())]
    if costs.num_layers == 1:
        return found
    smoothness = positive_constants(estimate, regime)
    search = _Search(smoothness, costs, regime, case)
    return [
        *found,
        *_progressive(smoothness, costs, regime, search),
        *_partitions(estimate, smoothness, costs, regime, search),
        *_windows(estimate, search),
        *_nice(estimate),
    ]


@dataclass(frozen=True)
class _Search:
    """A search for the best probabilities of sets, where there is no closed form."""

    smoothness: theory.Smoothness
    costs: theory.Costs
    regime: Regime
    case: theory.StochasticCase | None

    def best(
        self, sets: Sequence[ActiveSet], guesses: Sequence[FloatArray] = ()
    ) -> tuple[FloatArray, float]:
        """Return probabilities of the sets, and the gap to what the bound leaves open."""
        found = theory.optimal_sets(
            sets, self.smoothness, self.costs, self.regime, self.case, guesses=guesses
        )
        p = np.where(found.probabilities > _NEGLIGIBLE, found.probabilities, 0.0)
        return p / p.sum(), found.gap


def _progressive(
    smoothness: theory.Smoothness, costs: theory.Costs, regime: Regime, search: _Search
) -> Iterator[Candidate]:
    yield Candidate("progressive, uniform", Progressive(uniform))
    l0, l1 = smoothness.progressive_matrix(0), smoothness.progressive_matrix(1)
    gap = 0.0
    if regime == "smooth":
        best = theory.optimal_progressive(l0, repair=True)
    elif regime == "1/eps":
        best = theory.solve_generalized(l1, costs, repair=True).probabilities
    elif regime == "stochastic":
        sloped = theory.solve_generalized(l1, costs, repair=True).probabilities
        full = np.eye(costs.num_layers)[0]
        best, gap = search.best(suffixes(costs.num_layers), [full, sloped])
    else:
        starts = 8 if costs.num_layers <= _FEW_LAYERS else 0
        solution = theory.solve_generalized_squared(l0, l1, costs, repair=True, starts=starts)
        best, gap = solution.probabilities, solution.gap
    yield Candidate("progressive, optimal", Progressive(best), gap)


def _partitions(
    estimate: SmoothnessEstimate,
    smoothness: theory.Smoothness,
    costs: theory.Costs,
    regime: Regime,
    search: _Search,
) -> Iterator[Candidate]:
    b = costs.num_layers
    named = {
        f"blocks of {tau}, optimal": theory.contiguous_blocks(b, tau) for tau in block_sizes(b)
    }
    named["same position in all blocks, optimal"] = position_blocks(estimate.layers)
    for name, blocks in named.items():
        if not blocks or not _measured(blocks, estimate):
            continue
        if regime == "stochastic":
            p, gap = search.best(blocks)
            yield Candidate(name, Partition(blocks, p), gap)
        else:
            best = theory.optimal_partition(blocks, smoothness, costs, regime)
            yield Candidate(name, Partition(best.blocks, best.probabilities))


def _windows(estimate: SmoothnessEstimate, search: _Search) -> Iterator[Candidate]:
    b = search.costs.num_layers
    for tau in block_sizes(b)[1:]:
        sets = windows(b, tau)
        if _measured(sets, estimate):
            best, gap = search.best(sets)
            yield Candidate(f"windows of {tau}, optimal", Submodel(tau, best), gap)


def _nice(estimate: SmoothnessEstimate) -> Iterator[Candidate]:
    b = len(estimate.layers)
    for tau in sorted(nice_sizes(b)):
        if math.comb(b, tau) <= len(estimate.ratios) and _measured(Nice(tau).support(b), estimate):
            yield Candidate(f"any {tau} layers, uniform", Nice(tau))


def _measured(sets: Collection[tuple[int, ...]], estimate: SmoothnessEstimate) -> bool:
    return all(active in estimate.ratios for active in sets)


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
