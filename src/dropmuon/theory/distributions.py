"""The probability of every active set, recovered from what a sampler answers."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ActiveSet",
    "FloatArray",
    "SamplerLike",
    "Sampling",
    "active_set",
    "distribution_of",
    "marginals_of",
]

ActiveSet: TypeAlias = tuple[int, ...]
"""The layers that move in a step: ascending, without duplicates, never empty."""

FloatArray: TypeAlias = npt.NDArray[np.float64]

_SUM_TOLERANCE = 1e-6
_SOLUTION_TOLERANCE = 1e-9
_LARGEST_SYSTEM = 4_000


class SamplerLike(Protocol):
    """What the theory asks of a sampler."""

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List every set that has a positive probability at some progress."""
        ...

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return `F[i] = P(min S <= i)` and `Q[i] = P(i in S)`."""
        ...


Sampling: TypeAlias = SamplerLike | Mapping[ActiveSet, float]
"""A distribution D over active sets: a sampler, or the probability of each set."""


def active_set(argument: str, layers: Iterable[int], num_layers: int) -> ActiveSet:
    """Return the layers ascending, or say why they are no set of some of `num_layers` layers."""
    try:
        indices = tuple(sorted(operator.index(layer) for layer in layers))
    except TypeError:
        raise ValueError(
            f"{argument} must be a set of layer indices, got {layers!r}; give a tuple of integers"
        ) from None
    if not indices:
        raise ValueError(f"{argument} must not be an empty set, got {layers!r}; name a layer")
    if indices[0] < 0 or indices[-1] >= num_layers:
        raise ValueError(
            f"{argument} must hold layer indices from 0 to {num_layers - 1}, got {indices}; "
            "count layers from 0"
        )
    if len(set(indices)) != len(indices):
        raise ValueError(f"{argument} must name a layer once, got {indices}; remove the repeated")
    return indices


def marginals_of(
    sampler: Sampling, num_layers: int, progress: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Return F_i = P(min S <= i) and Q_i = P(i in S) (section "Optimizing the Cost")."""
    if not isinstance(sampler, Mapping):
        return sampler.marginals(num_layers, progress)
    starts, Q = np.zeros(num_layers), np.zeros(num_layers)
    for layers, probability in _validated(sampler, num_layers).items():
        starts[layers[0]] += probability
        Q[list(layers)] += probability
    return starts.cumsum(), Q


def distribution_of(
    sampler: Sampling, num_layers: int, progress: float = 0.0
) -> dict[ActiveSet, float]:
    """Return the probability of every set that can be drawn at this progress.

    A mapping is taken as it is, and so is the answer of a method
    `distribution(num_layers, progress)`, or public `sets` with `probabilities(n, progress)`.
    Otherwise the probabilities are those that the support and the marginals determine: from Q if
    the sets are disjoint, from the steps of F if each has its own cutoff, all equal for the
    subsets of size `tau`, and else by the linear system of both, if it has one solution.
    """
    if isinstance(sampler, Mapping):
        return _validated(sampler, num_layers)
    told = _told(sampler, num_layers, progress)
    if told is not None:
        return _validated(told, num_layers)
    sets = sampler.support(num_layers)
    F, Q = sampler.marginals(num_layers, progress)
    if len(sets) == 1:
        p = np.ones(1)
    elif sum(map(len, sets)) == len({layer for layers in sets for layer in layers}):
        p = Q[[layers[0] for layers in sets]]
    elif len({layers[0] for layers in sets}) == len(sets):
        p = np.diff(F, prepend=0.0)[[layers[0] for layers in sets]]
    elif _is_nice(sampler, sets, num_layers):
        p = np.full(len(sets), 1.0 / len(sets))
    else:
        p = _solved(sets, F, Q)
    return _validated(dict(zip(sets, np.maximum(p, 0.0).tolist(), strict=True)), num_layers)


def _told(
    sampler: SamplerLike, num_layers: int, progress: float
) -> Mapping[ActiveSet, float] | None:
    """Return the probabilities that the sampler itself states, if it does."""
    method = getattr(sampler, "distribution", None)
    if callable(method):
        stated: Mapping[ActiveSet, float] = method(num_layers, progress)
        return stated
    sets, schedule = getattr(sampler, "sets", None), getattr(sampler, "probabilities", None)
    if isinstance(sets, tuple) and callable(schedule):
        return dict(zip(sets, schedule(len(sets), progress).tolist(), strict=True))
    return None


def _is_nice(sampler: SamplerLike, sets: tuple[ActiveSet, ...], num_layers: int) -> bool:
    """Whether the sampler is the uniform one over all subsets of size tau.

    The marginals alone do not say so: other distributions over these sets share them.
    """
    tau = getattr(sampler, "tau", None)
    return (
        isinstance(tau, int)
        and not hasattr(sampler, "probabilities")
        and len(sets) == math.comb(num_layers, tau)
        and all(len(layers) == tau for layers in sets)
    )


def _solved(sets: tuple[ActiveSet, ...], F: FloatArray, Q: FloatArray) -> FloatArray:
    """Solve for the probabilities that have these marginals, where only one vector has."""
    b, m = F.size, len(sets)
    if m <= min(2 * b, _LARGEST_SYSTEM):
        A = np.zeros((2 * b, m))
        for k, layers in enumerate(sets):
            A[layers[0] : b, k] = 1.0
            A[[b + layer for layer in layers], k] = 1.0
        right = np.concatenate([F, Q])
        p, _, rank, _ = np.linalg.lstsq(A, right)
        if rank == m and np.abs(A @ p - right).max() <= _SOLUTION_TOLERANCE:
            solution: FloatArray = p
            return solution
    raise ValueError(
        f"sampler must determine the probability of each set, got {m} sets whose marginals leave "
        "them open; give a mapping from sets to probabilities, or a sampler with a method "
        "distribution(num_layers, progress)"
    )


def _validated(distribution: Mapping[ActiveSet, float], num_layers: int) -> dict[ActiveSet, float]:
    """Return the sets of positive probability, their probabilities summing to 1."""
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
