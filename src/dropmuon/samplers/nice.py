"""A uniformly random set of a given size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import SupportsIndex

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, count

__all__ = ["Nice"]

_LARGEST_SUPPORT = 100_000


@dataclass(frozen=True)
class Nice(Sampler):
    """Draw uniformly from the subsets of size tau (the paper's tau-nice sampling)."""

    tau: int

    def __init__(self, tau: SupportsIndex) -> None:
        object.__setattr__(self, "tau", count("tau", tau))

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
        if math.comb(num_layers, self.tau) > _LARGEST_SUPPORT:
            raise ValueError(
                f"tau must leave at most {_LARGEST_SUPPORT} sets to list, got {self.tau} of "
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

    def check(self, num_layers: int) -> None:
        """Raise ValueError if there are fewer than tau layers."""
        if self.tau > count("num_layers", num_layers):
            raise ValueError(
                f"tau must be at most the number of layers, {num_layers}, got {self.tau}; "
                "choose a smaller tau, or Full()"
            )

    @property
    def needs_progress(self) -> bool:
        """False: the distribution is always uniform."""
        return False
