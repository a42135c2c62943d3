"""Samplers that draw one index from a schedule and turn it into an active set."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, count
from dropmuon.samplers.schedules import Custom, Fixed, Schedule

__all__ = ["CHECKED_PROGRESS", "Categorical", "cumulative"]

CHECKED_PROGRESS = tuple(step / 100 for step in range(101))
"""Where `support` and `check` look at probabilities that change with progress."""


class Categorical(Sampler):
    """One of finitely many sets, the k-th with probability `probabilities(n, progress)[k]`."""

    probabilities: Schedule

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Draw one active set, by inverting the cumulative probabilities at one uniform number."""
        check_progress(progress)
        steps = self._cumulative(self._outcomes(num_layers), progress)
        return self._active_set(int(steps.searchsorted(rng.random(), side="right")), num_layers)

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List the sets that can be drawn, looking at each percent of progress."""
        n = self._outcomes(num_layers)
        possible = np.zeros(n, dtype=np.bool_)
        for progress in self._progresses():
            possible |= self.probabilities(n, progress) > 0
        return tuple(self._active_set(int(k), num_layers) for k in possible.nonzero()[0])

    def check(self, num_layers: int) -> None:
        """Raise ValueError unless every layer can be drawn, at each percent of progress."""
        for progress in self._progresses():
            moves = self.marginals(num_layers, progress)[1]
            if not moves.all():
                raise self._never_reached(int((moves == 0).argmax()), num_layers, progress)

    @property
    def needs_progress(self) -> bool:
        """Whether the probabilities change with progress."""
        return self.probabilities.needs_progress

    @abstractmethod
    def _outcomes(self, num_layers: int) -> int:
        """Return the number of sets to draw from, or raise if num_layers does not fit."""

    @abstractmethod
    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        """Return the set that an outcome stands for."""

    def _progresses(self) -> tuple[float, ...]:
        return CHECKED_PROGRESS if self.needs_progress else (0.0,)

    def _cumulative(self, n: int, progress: float) -> FloatArray:
        if self.needs_progress:
            return cumulative(self.probabilities(n, progress))
        return _cumulative_of_constant(self.probabilities, n)

    def _never_reached(self, layer: int, num_layers: int, progress: float) -> ValueError:
        who = "the first layer" if layer == 0 else f"layer {layer}"
        given = isinstance(self.probabilities, Fixed | Custom)
        why = "" if given else f" ({self.probabilities!r} underflows to zero here)"
        remedy = "give it a positive probability" if given else "choose a flatter one, as 'uniform'"
        return ValueError(
            f"probabilities must reach each of the {count('num_layers', num_layers)} layers, got 0 "
            f"for layer {layer} at progress {progress:g}{why}: {who} would never be reached; "
            f"{remedy}"
        )


def cumulative(weights: FloatArray) -> FloatArray:
    """Return the cumulative probabilities, ending in exactly 1.

    An entry of zero weight repeats its predecessor, and the last value is above every
    `rng.random()`: so the first value above a uniform number never has zero weight.
    """
    sums = weights.cumsum()
    shares: FloatArray = sums / sums[-1]
    return shares


@lru_cache(maxsize=128)
def _cumulative_of_constant(schedule: Schedule, n: int) -> FloatArray:
    steps = cumulative(schedule(n))
    steps.setflags(write=False)
    return steps
