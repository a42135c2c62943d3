"""A window of consecutive layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import ProbabilitiesLike, Schedule, as_schedule, uniform

__all__ = ["Submodel"]


@dataclass(frozen=True)
class Submodel(Categorical):
    """Draw a start s among b-tau+1 places with probability p_s and move s, ..., s+tau-1."""

    tau: int
    probabilities: Schedule

    def __init__(self, tau: SupportsIndex, probabilities: ProbabilitiesLike = uniform) -> None:
        object.__setattr__(self, "tau", count("tau", tau))
        object.__setattr__(self, "probabilities", as_schedule(probabilities))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i, the sum of p_j over starts j <= i, and Q_i, the same over j > i - tau."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        F = np.ones(num_layers)
        F[: p.size] = cumulative(p)
        Q = np.convolve(p, np.ones(self.tau))
        return F, np.minimum(Q, F)

    def _outcomes(self, num_layers: int) -> int:
        if self.tau > count("num_layers", num_layers):
            raise ValueError(
                f"tau must be at most the number of layers, {num_layers}, got {self.tau}; "
                "choose a smaller window"
            )
        return num_layers - self.tau + 1

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return tuple(range(outcome, outcome + self.tau))
