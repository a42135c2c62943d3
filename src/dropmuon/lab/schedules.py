"""Learning-rate schedules: factors on every learning rate, as functions of the spent budget.

A schedule does not count steps. Methods whose steps cost more or less than others reach the end of
the same schedule at the end of the same budget, each after as many steps as it could afford.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dropmuon.checks import unknown_name

__all__ = ["OPTIONS", "SCHEDULES", "RateSchedule"]

SCHEDULES = ("constant", "linear", "cosine", "wsd")
"""Constant, linear to 0, half a cosine to 0, and warm-up-stable-decay: linear to 0 at the end."""

OPTIONS = frozenset({"schedule", "warm_up", "decay"})
"""Settings of a comparison, and options of a method, that make its schedule."""


@dataclass(frozen=True)
class RateSchedule:
    """A schedule of learning rates.

    Attributes:
        schedule: one of `SCHEDULES`.
        warm_up: share of the budget in which the factor first rises linearly to 1.
        decay: share of the budget in which `wsd` falls to 0, the last one.
    """

    schedule: str = "constant"
    warm_up: float = 0.0
    decay: float = 0.2

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", str(self.schedule), SCHEDULES)
        if not _is_number(self.warm_up) or not 0 <= self.warm_up < 1:
            raise ValueError(
                f"warm_up must be a share of the budget in [0, 1), got {self.warm_up!r}; give 0.05"
            )
        if not _is_number(self.decay) or not 0 < self.decay <= 1:
            raise ValueError(
                f"decay must be a share of the budget in (0, 1], got {self.decay!r}; a schedule "
                "without an end is 'constant'"
            )
        if self.schedule == "wsd" and self.warm_up + self.decay > 1:
            raise ValueError(
                f"warm_up and decay must be at most 1 together, got {self.warm_up!r} and "
                f"{self.decay!r}; lower one of them"
            )

    def changed(self, options: Mapping[str, Any]) -> RateSchedule:
        """Return the schedule of a method that has these options."""
        own = {key: value for key, value in options.items() if key in OPTIONS}
        return RateSchedule(**{**vars(self), **own}) if own else self

    def factor(self, start: float, end: float) -> float:
        """Return the factor of a step that takes the spent budget from one share to another.

        Of N equal steps, step k = 0, ..., N-1 has the factor 1 - k/N on the linear schedule, and
        (k + 1) / (warm_up N) while it warms up: no step is wasted on a factor of 0.
        """
        if end < self.warm_up:
            return max(end, 0.0) / self.warm_up
        place = min(max(start - self.warm_up, 0.0) / (1 - self.warm_up), 1.0)
        if self.schedule == "linear":
            return 1 - place
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * place)) / 2
        if self.schedule == "wsd":
            return min(1.0, max(1 - start, 0.0) / self.decay)
        return 1.0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
