"""Full updates, and randomized progressive training by probabilities or by shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, layer_count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import ProbabilitiesLike, Schedule, as_schedule, uniform

__all__ = ["Full", "Progressive", "Shares"]


@dataclass(frozen=True)
class Full(Sampler):
    """All layers at every step: full Drop-Muon."""

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Return all layers; the generator is not used."""
        check_progress(progress)
        return tuple(range(layer_count(num_layers)))

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """Return the one set there is."""
        return (tuple(range(layer_count(num_layers))),)

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F = Q = 1."""
        check_progress(progress)
        layer_count(num_layers)
        return np.ones(num_layers), np.ones(num_layers)

    def check(self, num_layers: int) -> None:
        """Raise ValueError if there is no layer."""
        layer_count(num_layers)

    @property
    def needs_progress(self) -> bool:
        """False: nothing changes."""
        return False


@dataclass(frozen=True)
class Progressive(Categorical):
    """Layers s, ..., b-1 from a cutoff s drawn with probability p_s (the paper's RPT)."""

    probabilities: Schedule

    def __init__(self, probabilities: ProbabilitiesLike = uniform) -> None:
        object.__setattr__(self, "probabilities", as_schedule(probabilities))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i = Q_i = p_0 + ... + p_i."""
        F = cumulative(self.probabilities(self._outcomes(num_layers), progress))
        return F, F.copy()

    def _outcomes(self, num_layers: int) -> int:
        return layer_count(num_layers)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return tuple(range(outcome, num_layers))


@dataclass(frozen=True)
class Shares(Progressive):
    """Progressive sampling by the share of a batch that each layer's gradient is computed from.

    `Shares([0.25, 0.5, 1.0])` gives layer 0 a quarter of the examples, layer 1 half of them and
    layer 2 all. Shares do not decrease towards the output, and the last is 1, since backward
    passes through every layer above the lowest. With m parts, layer i is active in the nearest
    whole number of parts to m times its share, and in at least one; which parts these are changes
    from step to step. With one part the shares are the probabilities Q_i of being active.
    """

    shares: tuple[float, ...]

    def __init__(self, shares: npt.ArrayLike) -> None:
        values = _checked_shares(shares)
        object.__setattr__(self, "shares", tuple(values.tolist()))
        super().__init__(np.diff(values, prepend=0.0))

    def __repr__(self) -> str:
        return f"Shares({list(self.shares)!r})"

    def counts(self, parts: int) -> tuple[int, ...]:
        """Return in how many of `parts` parts each layer is active."""
        return tuple(max(1, math.floor(parts * share + 0.5)) for share in self.shares)

    def expected_parts(self, num_layers: int, parts: int, progress: float = 0.0) -> FloatArray:
        """Return the numbers of parts that the shares are rounded to."""
        self._outcomes(num_layers)
        if parts == 1:
            return super().expected_parts(num_layers, parts, progress)
        return np.array(self.counts(parts), dtype=np.float64)

    def sample_parts(
        self, num_layers: int, parts: int, rng: np.random.Generator, progress: float = 0.0
    ) -> tuple[ActiveSet, ...]:
        """Return the sets that give each layer its number of parts, in random order."""
        self._outcomes(num_layers)
        counts = self.counts(parts)
        cutoffs = [next(i for i, n in enumerate(counts) if n > j) for j in range(parts)]
        return tuple(tuple(range(cutoffs[j], num_layers)) for j in rng.permutation(parts))

    def _outcomes(self, num_layers: int) -> int:
        if layer_count(num_layers) != len(self.shares):
            raise ValueError(
                f"shares must have one entry per layer, {num_layers}, got {len(self.shares)}"
            )
        return num_layers


def _checked_shares(shares: npt.ArrayLike) -> FloatArray:
    values: FloatArray = np.asarray(shares, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"shares must be a list of numbers, one per layer, got {shares!r}")
    if values[0] <= 0 or (np.diff(values) < 0).any():
        raise ValueError(
            f"shares must be positive and must not decrease towards the output, got "
            f"{values.tolist()}; backward reaches a layer only through those above it"
        )
    if abs(values[-1] - 1.0) > _SHARE_TOLERANCE:
        raise ValueError(
            f"shares must end with 1, the whole batch for the last layer, got {values[-1]:g}"
        )
    scaled: FloatArray = values / values[-1]
    return scaled


_SHARE_TOLERANCE = 1e-6
