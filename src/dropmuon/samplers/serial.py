"""One layer at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import ProbabilitiesLike, Schedule, as_schedule, uniform

__all__ = ["Serial"]


@dataclass(frozen=True)
class Serial(Categorical):
    """Draw layer i with probability p_i and move it alone."""

    probabilities: Schedule

    def __init__(self, probabilities: ProbabilitiesLike = uniform) -> None:
        object.__setattr__(self, "probabilities", as_schedule(probabilities))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i = p_0 + ... + p_i and Q_i = p_i."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        F = cumulative(p)
        return F, np.minimum(p, F)

    def _outcomes(self, num_layers: int) -> int:
        return count("num_layers", num_layers)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return (outcome,)
