"""A sampler for tests that need to know which layers move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dropmuon import samplers


@dataclass(frozen=True)
class Always(samplers.Sampler):
    """The same set at every step."""

    layers: tuple[int, ...]

    def sample(self, num_layers, rng, progress=0.0):
        return self.layers

    def support(self, num_layers):
        return (self.layers,)

    def marginals(self, num_layers, progress=0.0):
        moves = np.array([float(i in self.layers) for i in range(num_layers)])
        reached = np.array([float(min(self.layers) <= i) for i in range(num_layers)])
        return reached, moves

    def check(self, num_layers):
        pass

    needs_progress = False
