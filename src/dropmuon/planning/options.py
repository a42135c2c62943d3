"""Ways to train that a plan compares, and how fast each is expected to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dropmuon.samplers import Full, Sampler

__all__ = ["Option", "Prediction"]

_WIDEST = 100.0
"""The ratio of its ends beyond which an interval is shown as unknown."""


@dataclass(frozen=True)
class Prediction:
    """The predicted time of full updates over that of an option, with an interval.

    `bounded` is False where constants seemed so small that the floor under them decides.
    """

    speedup: float
    low: float
    high: float
    bounded: bool = True

    @property
    def is_known(self) -> bool:
        """Whether enough was measured for an interval."""
        return self.low > 0

    def __str__(self) -> str:
        if not self.bounded:
            return f"{self.speedup:.2f}x (not bounded by the measurements)"
        if self.high > _WIDEST * self.low:
            return f"{self.speedup:.2f}x (unknown)"
        return f"{self.speedup:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Option:
    """A way to train, as settings of `DropMuon`, and its predictions.

    Attributes:
        name: what it is, for people.
        settings: arguments of `DropMuon`, the sampler among them.
        fresh: the prediction where every update has a batch of its own.
        reused: the same with several updates per batch; None where that is not predicted.
        gap: the share of its cost by which a better one of its kind could be cheaper: 0 where it
            is proven optimal.
    """

    name: str
    settings: Mapping[str, Any]
    fresh: Prediction
    reused: Prediction | None = None
    gap: float = 0.0

    @property
    def sampler(self) -> Sampler:
        """The distribution of its active sets."""
        found: Sampler = self.settings.get("sampler", Full())
        return found
