"""Samplers worth considering for a model, and what theory predicts for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dropmuon import theory
from dropmuon.planning.smoothness import SmoothnessEstimate
from dropmuon.samplers import ActiveSet, Full, Partition, Progressive, Sampler, uniform

__all__ = ["Candidate", "Prediction", "candidates", "planned_sets", "predict"]

FloatArray = npt.NDArray[np.float64]

_RESAMPLES = 100
_FLOOR = 1e-9
"""Least constant, as a share of the largest: a layer that seemed affine may still not leap."""


@dataclass(frozen=True)
class Candidate:
    """A sampler and the family that it is the best of."""

    family: str
    sampler: Sampler


@dataclass(frozen=True)
class Prediction:
    """How many times sooner than with full updates, by theory, with an interval."""

    speedup: float
    low: float
    high: float


def planned_sets(num_layers: int) -> list[ActiveSet]:
    """The sets whose constants are needed: suffixes, and blocks of 1, 2, 4, ... layers."""
    sets: dict[ActiveSet, None] = {tuple(range(s, num_layers)): None for s in range(num_layers)}
    for tau in _block_sizes(num_layers):
        sets.update({tuple(b): None for b in theory.contiguous_blocks(num_layers, tau)})
    return list(sets)


def candidates(estimate: SmoothnessEstimate, costs: theory.Costs) -> list[Candidate]:
    """Full updates, progressive training (uniform and optimal), and partitions at their optimum."""
    b = costs.num_layers
    smoothness = _floored(estimate.smooth, list(estimate.ratios))
    found = [Candidate("full updates", Full())]
    if b == 1:
        return found
    optimal = theory.optimal_progressive(smoothness.progressive_matrix(0), repair=True)
    found += [
        Candidate("progressive, uniform", Progressive(uniform)),
        Candidate("progressive, optimal", Progressive(optimal)),
    ]
    for tau in _block_sizes(b):
        blocks = theory.contiguous_blocks(b, tau)
        if all(tuple(block) in estimate.ratios for block in blocks):
            best = theory.optimal_partition(blocks, smoothness, costs)
            name = f"blocks of {tau}, optimal"
            found.append(Candidate(name, Partition(best.blocks, best.probabilities)))
    return found


def predict(
    candidate: Candidate, estimate: SmoothnessEstimate, costs: theory.Costs, seed: int = 0
) -> Prediction:
    """Compare with full updates (Theorem "rt_smooth_iter"); resample points for the interval."""
    sets = list(estimate.ratios)
    best = _speedup(candidate.sampler, _floored(estimate.smooth, sets), costs)
    others = [
        _speedup(candidate.sampler, smoothness, costs) for smoothness in _resampled(estimate, seed)
    ]
    tail = (1 - estimate.confidence) / 2
    low, high = np.quantile(others, [tail, 1 - tail]) if others else (best, best)
    return Prediction(best, float(min(low, best)), float(max(high, best)))


def _speedup(sampler: Sampler, smoothness: theory.Smoothness, costs: theory.Costs) -> float:
    return 1 / theory.against_full(sampler, costs, smoothness).ratio


def _block_sizes(num_layers: int) -> Sequence[int]:
    return [2**k for k in range(num_layers.bit_length()) if 2**k < num_layers]


def _resampled(estimate: SmoothnessEstimate, seed: int) -> Iterator[theory.Smoothness]:
    """Constants as they would be, had other points of the run been visited."""
    rng, points = np.random.default_rng(seed), estimate.points
    for _ in range(_RESAMPLES if points > 1 else 0):
        chosen = rng.integers(0, points, size=points)
        seen = {s: np.nan_to_num(table[chosen]).max(axis=0) for s, table in estimate.ratios.items()}
        yield _floored_table(_monotone(seen))


def _monotone(table: dict[ActiveSet, FloatArray]) -> dict[ActiveSet, FloatArray]:
    """Raise the constants of each set to those of its subsets (Lemma "smooth_subs")."""
    found = {}
    for active in table:
        below = [table[s] for s in table if set(s) <= set(active)]
        found[active] = np.maximum.reduce(below)
    return found


def _floored(smoothness: theory.Smoothness, sets: Sequence[ActiveSet]) -> theory.Smoothness:
    return _floored_table({s: smoothness.constants(0, s) for s in sets})


def _floored_table(table: dict[ActiveSet, FloatArray]) -> theory.Smoothness:
    largest = max(float(np.max(values)) for values in table.values())
    floor = _FLOOR * largest if largest > 0 else 1.0
    floored = {}
    for active, values in table.items():
        inside = np.isin(np.arange(len(values)), active)
        floored[active] = np.where(inside, np.maximum(values, floor), 0.0)
    return theory.Smoothness(floored)
