"""A random number of layers, anywhere in the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, count
from dropmuon.samplers.nice import Nice

__all__ = ["RandomSubset"]

_MOST_LAYERS = 16


@dataclass(frozen=True)
class RandomSubset(Sampler):
    """Draw a size from 1 to b uniformly, then a set of that size uniformly.

    As many layers move as under uniform progressive training, but not contiguous ones up to the
    output: what the comparison of the two shows is the worth of contiguity.
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
        """Any number of layers will do."""
        count("num_layers", num_layers)

    @property
    def needs_progress(self) -> bool:
        """False: the distribution is always the same."""
        return False
