"""The samplers to compare for a model: each family with its best probabilities."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dropmuon import theory
from dropmuon.planning.bounds.active_sets import (
    block_sizes,
    nice_sizes,
    position_blocks,
    suffixes,
    windows,
)
from dropmuon.planning.bounds.constants import positive_smoothness
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate
from dropmuon.samplers import Full, Nice, Partition, Progressive, Sampler, Submodel, uniform
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import Regime

__all__ = ["Candidate", "applicable_regime", "candidates", "positive_constants"]

_SHOWS = 0.01
"""L1 counts if, at the largest gradient, its term is this share of the largest ratio."""

_NEGLIGIBLE = 1e-12
"""Probabilities below this are rounding errors of the linear program."""

_FEW_LAYERS = 24
"""Up to this many layers, the search in the 1/eps^2 regime also starts from random points."""


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
