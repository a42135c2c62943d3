"""The axes of a sweep: settings with a list of values or a range of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from optuna.distributions import FloatDistribution, IntDistribution

from dropmuon.checks import unknown_name
from dropmuon.lab.config import Config

__all__ = ["Axis", "Range", "check_name", "option", "read_axis"]

_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Range:
    """All numbers from low to high; whole numbers if both ends and the step are whole."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @classmethod
    def of(cls, axis: str, content: Mapping[str, Any]) -> Range:
        """Make a range from plain values, for the axis of this name."""
        for key in content:
            if key not in _KEYS:
                raise unknown_name(f"key of the range {axis!r}", str(key), _KEYS)
        if not {"low", "high"} <= set(content):
            raise ValueError(f"axis {axis!r} as a range must have low and high, got {content!r}")
        found = cls(**content)
        found._check(axis)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `of` reads back."""
        return asdict(self)

    @property
    def distribution(self) -> FloatDistribution | IntDistribution:
        """The range as an Optuna distribution."""
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


Axis = tuple[Any, ...] | Range
"""The values of one setting: a list, or with tpe also a range."""


def read_axis(name: str, given: Any) -> Axis:
    """Make an axis from plain values: a list, or the mapping of a range."""
    if isinstance(given, Mapping):
        return Range.of(name, given)
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"axis {name!r} must be a list of values, got {given!r}; write [a, b, c]")
    if name == "options" and not all(isinstance(each, Mapping) for each in given):
        raise ValueError(
            f"axis 'options' must be a list of mappings from methods to options, got {given!r}"
        )
    twice = next((v for k, v in enumerate(given) if v in given[:k]), None)
    if twice is not None:
        raise ValueError(f"axis {name!r} must have different values, got {twice!r} twice; drop one")
    return tuple(given)


def check_name(axis: str) -> None:
    """Reject an axis that is not a setting."""
    known = {each.name for each in fields(Config)} | {"method"}
    if axis.startswith("options."):
        method, key = option(axis)
        if not method or not key:
            raise ValueError(f"axis {axis!r} must be options.METHOD.KEY, such as options.adamw.lr")
    elif axis not in known:
        raise unknown_name("axis", axis, known | {"options.METHOD.KEY"})


def option(axis: str) -> tuple[str, str]:
    """Split `options.METHOD.KEY` into method and key."""
    method, _, key = axis.removeprefix("options.").rpartition(".")
    return method, key


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
