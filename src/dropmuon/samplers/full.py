"""Every layer at every step: plain Muon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, count

__all__ = ["Full"]


@dataclass(frozen=True)
class Full(Sampler):
    """The whole network, always."""

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Return all layers; the generator is left untouched."""
        check_progress(progress)
        return tuple(range(count("num_layers", num_layers)))

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """Return the one set there is."""
        return (tuple(range(count("num_layers", num_layers))),)

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F = Q = 1."""
        check_progress(progress)
        count("num_layers", num_layers)
        return np.ones(num_layers), np.ones(num_layers)

    def check(self, num_layers: int) -> None:
        """Raise ValueError if there is no layer."""
        count("num_layers", num_layers)

    @property
    def needs_progress(self) -> bool:
        """False: nothing changes."""
        return False
