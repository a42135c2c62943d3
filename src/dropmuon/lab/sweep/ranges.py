"""Ranges that a search chooses from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from optuna.distributions import FloatDistribution, IntDistribution

from dropmuon.checks import unknown_name

__all__ = ["Range"]

_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Range:
    """All numbers from low to high; whole ones where both ends and the step are whole."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @classmethod
    def of(cls, axis: str, content: Mapping[str, Any]) -> Range:
        """Make one from plain values, for the axis of this name."""
        for key in content:
            if key not in _KEYS:
                raise unknown_name(f"key of the range {axis!r}", str(key), _KEYS)
        if not {"low", "high"} <= set(content):
            raise ValueError(f"axis {axis!r} as a range must have low and high, got {content!r}")
        found = cls(**content)
        found._check(axis)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values that `of` reads back."""
        return asdict(self)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest number."""
        return self.low, self.high

    @property
    def distribution(self) -> FloatDistribution | IntDistribution:
        """The range as Optuna knows it."""
        if all(isinstance(each, int) for each in (self.low, self.high, self.step or 1)):
            step = int(self.step or 1)
            return IntDistribution(int(self.low), int(self.high), self.log, step)
        return FloatDistribution(self.low, self.high, self.log, self.step)

    def _check(self, axis: str) -> None:
        for key in ("low", "high", "step"):
            value = getattr(self, key)
            if not _is_number(value) and not (key == "step" and value is None):
                raise ValueError(f"{key} of axis {axis!r} must be a number, got {value!r}")
        if not self.low < self.high:
            raise ValueError(
                f"low of axis {axis!r} must be below high, got {self.low} and {self.high}"
            )
        if not isinstance(self.log, bool):
            raise ValueError(f"log of axis {axis!r} must be true or false, got {self.log!r}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(
                f"axis {axis!r} with log must start above 0 and have no step, got low {self.low} "
                f"and step {self.step}"
            )
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step of axis {axis!r} must fit into the range, got {self.step}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
