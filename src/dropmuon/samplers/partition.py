"""One block of a partition of the layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Self, SupportsIndex

import numpy as np

from dropmuon.samplers.base import ActiveSet, FloatArray, active_set, count
from dropmuon.samplers.categorical import Categorical, cumulative
from dropmuon.samplers.schedules import ProbabilitiesLike, Schedule, as_schedule, uniform

__all__ = ["Partition"]


@dataclass(frozen=True)
class Partition(Categorical):
    """Draw block k with probability p_k and move its layers (the paper's arbitrary submodel).

    The blocks are disjoint and cover the layers 0, ..., b-1.
    """

    blocks: tuple[ActiveSet, ...]
    probabilities: Schedule

    def __init__(
        self,
        blocks: Iterable[Iterable[SupportsIndex]],
        probabilities: ProbabilitiesLike = uniform,
    ) -> None:
        sets = tuple(active_set("blocks", block) for block in blocks)
        object.__setattr__(self, "blocks", sets)
        object.__setattr__(self, "probabilities", as_schedule(probabilities))
        _check_partition(sets)
        self.check(self.num_layers)

    @classmethod
    def contiguous(
        cls,
        num_layers: SupportsIndex,
        size: SupportsIndex,
        probabilities: ProbabilitiesLike = uniform,
    ) -> Self:
        """Cut `num_layers` layers into blocks of `size` neighbours; the last may be shorter."""
        b, step = count("num_layers", num_layers), count("size", size)
        return cls([range(i, min(i + step, b)) for i in range(0, b, step)], probabilities)

    @cached_property
    def num_layers(self) -> int:
        """The number of layers that the blocks cover."""
        return sum(map(len, self.blocks))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F_i, the sum of p_k over blocks that start by i, and Q_i = p of i's block."""
        p = self.probabilities(self._outcomes(num_layers), progress)
        starts, Q = np.zeros(num_layers), np.zeros(num_layers)
        starts[[block[0] for block in self.blocks]] = p
        Q[list(chain.from_iterable(self.blocks))] = p.repeat([len(block) for block in self.blocks])
        F = cumulative(starts)
        return F, np.minimum(Q, F)

    def _outcomes(self, num_layers: int) -> int:
        if self.num_layers != count("num_layers", num_layers):
            raise ValueError(
                f"blocks must cover exactly the {num_layers} layers there are, got blocks of "
                f"{self.num_layers} layers; see Partition.contiguous({num_layers}, size)"
            )
        return len(self.blocks)

    def _active_set(self, outcome: int, num_layers: int) -> ActiveSet:
        return self.blocks[outcome]


def _check_partition(blocks: tuple[ActiveSet, ...]) -> None:
    if not blocks:
        raise ValueError("blocks must not be empty, got no block; give at least one")
    layers = [layer for block in blocks for layer in block]
    seen = set(layers)
    if len(seen) < len(layers):
        twice = min(layer for layer in seen if layers.count(layer) > 1)
        raise ValueError(
            f"blocks must be disjoint, got layer {twice} more than once; keep it in one block"
        )
    missing = next((i for i, layer in enumerate(sorted(seen)) if i != layer), None)
    if missing is not None:
        raise ValueError(
            f"blocks must cover every layer from 0 to {max(layers)}, got none with layer "
            f"{missing}; add it to a block"
        )
