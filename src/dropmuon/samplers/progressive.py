"""Full updates, randomized progressive training, and the samplers that have a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dropmuon.checks import unknown_name
from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, layer_count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import (
    SCHEDULES,
    ProbabilitiesLike,
    Schedule,
    as_schedule,
    uniform,
)

__all__ = ["Full", "Progressive", "SamplerName", "by_name"]

SamplerName = Literal["full", "uniform", "linear", "quadratic", "exponential", "epoch-shift"]
"""The samplers that have a name: all layers, or progressive with the schedule of that name."""


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
    """Draw a cutoff s with probability p_s and move layers s, ..., b-1 (the paper's RPT)."""

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


def by_name(sampler: str | Sampler) -> Sampler:
    """Return the sampler of this name; a sampler is returned as it is.

    "full" is `Full()`; the name of a schedule is `Progressive` with that schedule.
    """
    if isinstance(sampler, Sampler):
        return sampler
    if not isinstance(sampler, str):
        raise TypeError(
            f"sampler must be a name or a Sampler, got {sampler!r}; "
            "use 'uniform' or an object such as Progressive()"
        )
    if sampler == "full":
        return Full()
    if sampler not in SCHEDULES:
        raise unknown_name("sampler", sampler, ["full", *SCHEDULES])
    return Progressive(SCHEDULES[sampler])
