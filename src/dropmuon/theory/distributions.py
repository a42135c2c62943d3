"""A sampler or a mapping from sets to probabilities: the two forms of a distribution D."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, active_set

__all__ = ["Sampling", "distribution_of", "marginals_of", "members"]

_SUM_TOLERANCE = 1e-6

Sampling: TypeAlias = Sampler | Mapping[ActiveSet, float]
"""A distribution D over active sets: a sampler, or the probability of each set."""


def marginals_of(
    sampler: Sampling, num_layers: int, progress: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Return F_i = P(min S <= i) and Q_i = P(i in S) (section "Optimizing the Cost")."""
    if isinstance(sampler, Sampler):
        return sampler.marginals(num_layers, progress)
    starts, Q = np.zeros(num_layers), np.zeros(num_layers)
    for layers, probability in _validated(sampler, num_layers).items():
        starts[layers[0]] += probability
        Q[list(layers)] += probability
    return starts.cumsum(), Q


def distribution_of(
    sampler: Sampling, num_layers: int, progress: float = 0.0
) -> dict[ActiveSet, float]:
    """Return the probability of every set that can be drawn at this progress; they sum to 1."""
    if isinstance(sampler, Sampler):
        return _validated(sampler.distribution(num_layers, progress), num_layers)
    return _validated(sampler, num_layers)


def members(sets: Collection[ActiveSet], num_layers: int) -> npt.NDArray[np.bool_]:
    """Return a row per set and a column per layer: whether the set holds the layer."""
    inside = np.zeros((len(sets), num_layers), dtype=np.bool_)
    for row, layers in zip(inside, sets, strict=True):
        row[list(layers)] = True
    return inside


def _validated(distribution: Mapping[ActiveSet, float], num_layers: int) -> dict[ActiveSet, float]:
    """Return the sets of positive probability, their probabilities summing to 1."""
    if not isinstance(distribution, Mapping):
        raise TypeError(
            f"sampler must be a Sampler or map sets to probabilities, got {distribution!r}; "
            "give a dict such as {(0, 1): 0.5, (1,): 0.5}"
        )
    found: dict[ActiveSet, float] = {}
    for layers, probability in distribution.items():
        indices, p = active_set("distribution", layers, num_layers), float(probability)
        if not math.isfinite(p) or p < 0:
            raise ValueError(
                f"distribution must hold probabilities of at least 0, got {probability!r} for "
                f"{indices}; use numbers in [0, 1]"
            )
        if indices in found:
            raise ValueError(f"distribution must name a set once, got {indices} twice; add them")
        found[indices] = p
    total = math.fsum(found.values())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise ValueError(f"distribution must sum to 1, got {total:.9g}; divide by the sum")
    return {layers: p / total for layers, p in found.items() if p > 0}
