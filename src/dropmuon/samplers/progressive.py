"""Randomized progressive training: all layers from a random cutoff to the output."""

from __future__ import annotations

from dataclasses import dataclass

from dropmuon.samplers.base import ActiveSet, FloatArray, count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import ProbabilitiesLike, Schedule, as_schedule, uniform

__all__ = ["Progressive"]


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
        return count("num_layers", num_layers)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return tuple(range(outcome, num_layers))
