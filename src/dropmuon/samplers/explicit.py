"""Any distribution over finitely many active sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import SupportsIndex

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, active_set, layer_count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import Fixed

__all__ = ["Arbitrary"]


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
