"""How often each layer moved or was skipped, counted without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Tally"]


class Tally:
    """Counts of layers, by name: layers may be added, and then their indices change.

    Whether a layer was skipped because of a NaN may be known to the device only, as a count of 0 or
    1. Such counts are summed there, and read when someone asks.
    """

    def __init__(self) -> None:
        self._moved: dict[str, int] = {}
        self._stopped: dict[str, Tensor] = {}
        self._skipped: dict[str, Tensor] = {}

    def count(
        self, names: Sequence[str], moving: Iterable[int], skipped: Mapping[int, Tensor]
    ) -> None:
        """Count an update: the layers that were to move, and those among all that were skipped."""
        for layer in moving:
            name = names[layer]
            self._moved[name] = self._moved.get(name, 0) + 1
            if layer in skipped:
                _add(self._stopped, name, skipped[layer])
        for layer, found in skipped.items():
            _add(self._skipped, names[layer], found)

    def moved(self, names: Iterable[str]) -> dict[str, int]:
        """Return how often each of these layers moved."""
        zero = torch.zeros((), dtype=torch.long)
        return {
            name: self._moved.get(name, 0) - int(self._stopped.get(name, zero)) for name in names
        }

    @property
    def skipped(self) -> dict[str, int]:
        """How often layers were skipped; those that never were are left out."""
        counts = {name: int(count) for name, count in self._skipped.items()}
        return {name: count for name, count in counts.items() if count}

    def state(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what a saved state holds."""
        return {"moves": self.moved(names), "skipped": self.skipped}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._moved, self._stopped = dict(state["moves"]), {}
        self._skipped = {name: torch.tensor(count) for name, count in state["skipped"].items()}


def _add(counts: dict[str, Tensor], name: str, count: Tensor) -> None:
    counts[name] = counts[name] + count if name in counts else count
