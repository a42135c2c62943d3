"""Samplers that draw one index from a schedule and turn it into an active set.

`Arbitrary` is the general case: any distribution over finitely many sets, written out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import SupportsIndex

import numpy as np

from dropmuon.samplers.base import (
    ActiveSet,
    FloatArray,
    Sampler,
    active_set,
    check_progress,
    layer_count,
)
from dropmuon.samplers.schedules import Custom, Fixed, Schedule

__all__ = ["Arbitrary", "Categorical", "cumulative"]

_CHECKED_PROGRESS = tuple(step / 100 for step in range(101))
"""Where `support` and `check` evaluate probabilities that change with progress."""


class Categorical(Sampler):
    """One of n different sets, the k-th with probability `probabilities(n, progress)[k]`.

    Subclasses define the number of sets, the set of each index, and the marginals. What does not
    change with progress is computed once per number of layers.
    """

    probabilities: Schedule

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Draw one active set, by inverting the cumulative probabilities at one uniform number."""
        check_progress(progress)
        steps = self._cumulative(self._outcomes(num_layers), progress)
        return self._active_set(int(steps.searchsorted(rng.random(), side="right")), num_layers)

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List the sets that can be drawn at some whole percent of progress."""
        n = self._outcomes(num_layers)
        possible = np.zeros(n, dtype=np.bool_)
        for progress in self._progresses():
            possible |= self.probabilities(n, progress) > 0
        return tuple(self._active_set(int(k), num_layers) for k in possible.nonzero()[0])

    def distribution(self, num_layers: int, progress: float = 0.0) -> dict[ActiveSet, float]:
        """Return the probability of every set that can be drawn at this progress."""
        check_progress(progress)
        n = self._outcomes(num_layers)
        if not self.needs_progress and num_layers in self._distributions:
            return self._distributions[num_layers].copy()
        if num_layers not in self._sets:
            self._sets[num_layers] = tuple(self._active_set(k, num_layers) for k in range(n))
        p = self.probabilities(n, progress).tolist()
        found = {s: share for s, share in zip(self._sets[num_layers], p, strict=True) if share > 0}
        if not self.needs_progress:
            self._distributions[num_layers] = found.copy()
        return found

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
        """Return the set of an outcome."""

    def _progresses(self) -> tuple[float, ...]:
        return _CHECKED_PROGRESS if self.needs_progress else (0.0,)

    def _cumulative(self, n: int, progress: float) -> FloatArray:
        if self.needs_progress:
            return cumulative(self.probabilities(n, progress))
        if n not in self._cumulatives:
            self._cumulatives[n] = cumulative(self.probabilities(n))
        return self._cumulatives[n]

    @cached_property
    def _cumulatives(self) -> dict[int, FloatArray]:
        return {}

    @cached_property
    def _sets(self) -> dict[int, tuple[ActiveSet, ...]]:
        return {}

    @cached_property
    def _distributions(self) -> dict[int, dict[ActiveSet, float]]:
        return {}

    def _never_reached(self, layer: int, num_layers: int, progress: float) -> ValueError:
        who = "the first layer" if layer == 0 else f"layer {layer}"
        given = isinstance(self.probabilities, Fixed | Custom)
        why = "" if given else f" ({self.probabilities!r} underflows to zero here)"
        flatter = "choose a flatter one, such as 'uniform'"
        remedy = "give it a positive probability" if given else flatter
        return ValueError(
            f"probabilities must reach each of the {num_layers} layers, got 0 "
            f"for layer {layer} at progress {progress:g}{why}: {who} would never be reached; "
            f"{remedy}"
        )


@dataclass(frozen=True)
class Arbitrary(Categorical):
    """Given sets with given probabilities: `Arbitrary({(0, 1): 0.25, (1,): 0.75})`.

    Keys are tuples or frozensets of layer indices. Their order does not matter: sets are kept
    sorted, so equal distributions draw equal sets.
    """

    sets: tuple[ActiveSet, ...]
    probabilities: Fixed

    def __init__(self, distribution: Mapping[Iterable[SupportsIndex], float]) -> None:
        if not isinstance(distribution, Mapping):
            raise TypeError(
                f"distribution must map sets to probabilities, got {distribution!r}; "
                "give a dict such as {(0, 1): 0.5, (1,): 0.5}"
            )
        if not distribution:
            raise ValueError("distribution must not be empty, got no sets; give at least one")
        pairs = [(active_set("distribution", s), p) for s, p in distribution.items()]
        pairs.sort(key=lambda pair: pair[0])
        sets = tuple(s for s, _ in pairs)
        for left, right in pairwise(sets):
            if left == right:
                raise ValueError(
                    f"distribution must name a set once, got {left} twice; add the probabilities"
                )
        object.__setattr__(self, "sets", sets)
        object.__setattr__(self, "probabilities", Fixed([p for _, p in pairs]))
        self.check(self._last_layer + 1)

    def __repr__(self) -> str:
        pairs = zip(self.sets, self.probabilities.probabilities, strict=True)
        return f"Arbitrary({{{', '.join(f'{s!r}: {p!r}' for s, p in pairs)}}})"

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i and Q_i by adding the probabilities of the sets that count for layer i."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        starts, Q = np.zeros(num_layers), np.zeros(num_layers)
        for layers, probability in zip(self.sets, p, strict=True):
            starts[layers[0]] += probability
            Q[list(layers)] += probability
        F = cumulative(starts)
        return F, np.minimum(Q, F)

    @cached_property
    def _last_layer(self) -> int:
        return max(s[-1] for s in self.sets)

    def _outcomes(self, num_layers: int) -> int:
        if self._last_layer >= layer_count(num_layers):
            raise ValueError(
                f"distribution must hold layer indices below {num_layers}, got {self._last_layer}; "
                "count layers from 0"
            )
        return len(self.sets)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return self.sets[outcome]


def cumulative(weights: FloatArray) -> FloatArray:
    """Return the cumulative probabilities, ending in exactly 1.

    An entry of zero weight repeats its predecessor, and the last value is above every
    `rng.random()`: so the first value above a uniform number never has zero weight.
    """
    sums = weights.cumsum()
    shares: FloatArray = sums / sums[-1]
    return shares
