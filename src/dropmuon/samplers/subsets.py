"""Samplers of sets that need not reach the output: windows, blocks, single layers, any subset."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import Self, SupportsIndex

import numpy as np

from dropmuon.checks import whole_number
from dropmuon.samplers.base import (
    ActiveSet,
    FloatArray,
    Sampler,
    active_set,
    check_progress,
    layer_count,
)
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import ProbabilitiesLike, Schedule, as_schedule, uniform

__all__ = ["Nice", "Partition", "RandomSubset", "Serial", "Submodel"]

_MOST_SETS = 100_000
"""The largest support of `Nice` that is listed."""

_MOST_LAYERS = 16
"""The largest number of layers whose subsets are all listed."""


@dataclass(frozen=True)
class Serial(Categorical):
    """A single layer, layer i with probability p_i."""

    probabilities: Schedule

    def __init__(self, probabilities: ProbabilitiesLike = uniform) -> None:
        object.__setattr__(self, "probabilities", as_schedule(probabilities))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i = p_0 + ... + p_i and Q_i = p_i."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        F = cumulative(p)
        return F, np.minimum(p, F)

    def _outcomes(self, num_layers: int) -> int:
        return layer_count(num_layers)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return (outcome,)


@dataclass(frozen=True)
class Submodel(Categorical):
    """Layers s, ..., s+tau-1 from one of b-tau+1 starts s, drawn with probability p_s."""

    tau: int
    probabilities: Schedule

    def __init__(self, tau: SupportsIndex, probabilities: ProbabilitiesLike = uniform) -> None:
        object.__setattr__(self, "tau", _set_size(tau))
        object.__setattr__(self, "probabilities", as_schedule(probabilities))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i, the sum of p_j over starts j <= i, and Q_i, the same over j > i - tau."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        F = np.ones(num_layers)
        F[: p.size] = cumulative(p)
        Q = np.convolve(p, np.ones(self.tau))
        return F, np.minimum(Q, F)

    def _outcomes(self, num_layers: int) -> int:
        _check_fits(self.tau, num_layers, remedy="choose a smaller window")
        return num_layers - self.tau + 1

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return tuple(range(outcome, outcome + self.tau))


@dataclass(frozen=True)
class Partition(Categorical):
    """One block of a partition, drawn with probability p_k (the paper's arbitrary submodel).

    The blocks are disjoint and cover the layers 0, ..., b-1.
    """

    blocks: tuple[ActiveSet, ...]
    probabilities: Schedule

    def __init__(
        self,
        blocks: Iterable[Iterable[SupportsIndex]],
        probabilities: ProbabilitiesLike = uniform,
    ) -> None:
        sets = tuple(active_set("blocks", block) for block in blocks)
        object.__setattr__(self, "blocks", sets)
        object.__setattr__(self, "probabilities", as_schedule(probabilities))
        _check_partition(sets)
        self.check(self.num_layers)

    @classmethod
    def contiguous(
        cls,
        num_layers: SupportsIndex,
        size: SupportsIndex,
        probabilities: ProbabilitiesLike = uniform,
    ) -> Self:
        """Cut `num_layers` layers into blocks of `size` neighbours; the last may be shorter."""
        b = layer_count(num_layers)
        step = whole_number("size", size, remedy="give the number of layers of a block")
        return cls([range(i, min(i + step, b)) for i in range(0, b, step)], probabilities)

    @cached_property
    def num_layers(self) -> int:
        """The number of layers that the blocks cover."""
        return sum(map(len, self.blocks))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i, the sum of p_k over blocks that start by i, and Q_i = p of i's block."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        starts, Q = np.zeros(num_layers), np.zeros(num_layers)
        starts[[block[0] for block in self.blocks]] = p
        Q[list(chain.from_iterable(self.blocks))] = p.repeat([len(block) for block in self.blocks])
        F = cumulative(starts)
        return F, np.minimum(Q, F)

    def _outcomes(self, num_layers: int) -> int:
        if self.num_layers != layer_count(num_layers):
            raise ValueError(
                f"blocks must cover exactly the {num_layers} layers there are, got blocks of "
                f"{self.num_layers} layers; see Partition.contiguous({num_layers}, size)"
            )
        return len(self.blocks)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return self.blocks[outcome]


@dataclass(frozen=True)
class Nice(Sampler):
    """A uniform draw from the subsets of size tau (the paper's tau-nice sampling)."""

    tau: int

    def __init__(self, tau: SupportsIndex) -> None:
        object.__setattr__(self, "tau", _set_size(tau))

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Draw tau layers: those with the smallest of `num_layers` uniform numbers."""
        check_progress(progress)
        self.check(num_layers)
        keys = rng.random(num_layers)
        chosen = keys.argpartition(self.tau - 1)[: self.tau]
        chosen.sort()
        return tuple(chosen.tolist())

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List all subsets of size tau, if there are at most 100,000."""
        self.check(num_layers)
        if math.comb(num_layers, self.tau) > _MOST_SETS:
            raise ValueError(
                f"tau must leave at most {_MOST_SETS} sets to list, got {self.tau} of "
                f"{num_layers} layers; use marginals(), which needs no support"
            )
        return tuple(combinations(range(num_layers), self.tau))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i = 1 - C(b-1-i, tau) / C(b, tau), i from 0, and Q_i = tau / b.

        The ratio of binomials is the product of (b-tau-k)/(b-k) over k <= i, which stays in [0, 1].
        """
        check_progress(progress)
        self.check(num_layers)
        b, tau = num_layers, self.tau
        k = np.arange(b, dtype=np.float64)
        with np.errstate(under="ignore"):
            none_up_to_i = np.cumprod(np.maximum(b - tau - k, 0.0) / (b - k))
        Q = np.full(b, tau / b)
        return np.maximum(1.0 - none_up_to_i, Q), Q

    def distribution(self, num_layers: int, progress: float = 0.0) -> dict[ActiveSet, float]:
        """Return the same probability for every set of size tau, if they can be listed."""
        check_progress(progress)
        sets = self.support(num_layers)
        return dict.fromkeys(sets, 1.0 / len(sets))

    def check(self, num_layers: int) -> None:
        """Raise ValueError if there are fewer than tau layers."""
        _check_fits(self.tau, num_layers, remedy="choose a smaller tau, or Full()")

    @property
    def needs_progress(self) -> bool:
        """False: the distribution is always uniform."""
        return False


@dataclass(frozen=True)
class RandomSubset(Sampler):
    """A uniform draw of a size from 1 to b, then of a set of that size.

    It moves as many layers as uniform progressive training does, but not contiguous ones up to the
    output: comparing the two shows the value of contiguity.
    """

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Draw the size, then the layers."""
        self.check(num_layers)
        return Nice(int(rng.integers(1, num_layers + 1))).sample(num_layers, rng, progress)

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List every set that is not empty, of at most 16 layers."""
        self.check(num_layers)
        if num_layers > _MOST_LAYERS:
            raise ValueError(
                f"num_layers must be at most {_MOST_LAYERS} to list all sets, got {num_layers}; "
                "use marginals(), which needs no support"
            )
        sizes = range(1, num_layers + 1)
        return tuple(chain.from_iterable(Nice(tau).support(num_layers) for tau in sizes))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return the means over sizes of the marginals of tau-nice sampling."""
        check_progress(progress)
        self.check(num_layers)
        each = [Nice(tau).marginals(num_layers) for tau in range(1, num_layers + 1)]
        F, Q = np.mean(each, axis=0)
        return F, np.minimum(Q, F)

    def distribution(self, num_layers: int, progress: float = 0.0) -> dict[ActiveSet, float]:
        """Return the probability of every set: 1/b for its size, shared by all of that size."""
        check_progress(progress)
        b = num_layers
        return {s: 1.0 / (b * math.comb(b, len(s))) for s in self.support(b)}

    def check(self, num_layers: int) -> None:
        """Raise ValueError if there is no layer."""
        layer_count(num_layers)

    @property
    def needs_progress(self) -> bool:
        """False: the distribution is always the same."""
        return False


def _set_size(tau: SupportsIndex) -> int:
    return whole_number("tau", tau, remedy="give the number of layers that move")


def _check_fits(tau: int, num_layers: int, *, remedy: str) -> None:
    if tau > layer_count(num_layers):
        raise ValueError(
            f"tau must be at most the number of layers, {num_layers}, got {tau}; {remedy}"
        )


def _check_partition(blocks: tuple[ActiveSet, ...]) -> None:
    if not blocks:
        raise ValueError("blocks must not be empty, got no block; give at least one")
    layers = [layer for block in blocks for layer in block]
    seen = set(layers)
    if len(seen) < len(layers):
        twice = min(layer for layer in seen if layers.count(layer) > 1)
        raise ValueError(
            f"blocks must be disjoint, got layer {twice} more than once; keep it in one block"
        )
    missing = next((i for i, layer in enumerate(sorted(seen)) if i != layer), None)
    if missing is not None:
        raise ValueError(
            f"blocks must cover every layer from 0 to {max(layers)}, got none with layer "
            f"{missing}; add it to a block"
        )
