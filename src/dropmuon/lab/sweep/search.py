"""What a sweep searches: the axes that its cells span, and the objective that ranks them.

An axis is a setting with a list of values or a range of numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from dropmuon.checks import unknown_name
from dropmuon.lab.analysis.metrics import finals, time_to_target
from dropmuon.lab.analysis.series import SPLITS, Split, Unit, trials
from dropmuon.lab.analysis.wording import amount, percent
from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation

__all__ = [
    "METRICS",
    "Axis",
    "Objective",
    "Range",
    "check_name",
    "distribution",
    "option",
    "plain",
    "read_axis",
]

_KEYS = ("low", "high", "log", "step")

METRICS = ("test_accuracy", "train_accuracy", "seconds_to_target", "operations_to_target")


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


@dataclass(frozen=True)
class Objective:
    """A number per cell, the mean over its seeds.

    Attributes:
        metric: final accuracy (higher is better) or time to a target (lower is better).
        target: in percent, for times; if a seed misses it, the cell's time is infinite.
        split: the accuracy that must reach the target, "train" or "test".
        method: whose number it is; by default the best method of the cell.
    """

    metric: str = "test_accuracy"
    target: float = 90.0
    split: Split = "test"
    method: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any] | str) -> Objective:
        """Make an objective from plain values; the name of a metric is enough."""
        given = {"metric": content} if isinstance(content, str) else content
        if not isinstance(given, Mapping):
            raise ValueError(
                f"objective must be a mapping such as {{metric: test_accuracy}}, got {given!r}"
            )
        known = [each.name for each in fields(cls)]
        for key in given:
            if key not in known:
                raise unknown_name("key of the objective", str(key), known)
        found = cls(**given)
        found._check()
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `of` reads back."""
        return asdict(self)

    @property
    def title(self) -> str:
        """A name for the number, such as the head of a column."""
        return self.metric.replace("_", " ").replace("target", f"{self.target:g} %")

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """The direction that is better, as Optuna names it."""
        return "minimize" if self._is_time else "maximize"

    def value(self, evaluations: Iterable[Evaluation]) -> float:
        """Return the number of a finished cell, infinite for a target that was missed."""
        own = [e for e in evaluations if self.method is None or e.method == self.method]
        if not own:
            raise ValueError("the cell has no evaluations: its directory is damaged")
        if not self._is_time:
            ends = finals(own, own[0].method)
            return max((e.test if self.metric.startswith("test") else e.train).mean for e in ends)
        unit: Unit = "seconds" if self.metric.startswith("seconds") else "operations"
        return min(self._time(list(of.values()), unit) for of in trials(own).values())

    def shown(self, value: float | None) -> str:
        """Return the number as text."""
        if value is None:
            return "–"
        if not self._is_time:
            return percent(value)
        unit: Unit = "seconds" if self.metric.startswith("seconds") else "operations"
        return amount(value, unit) if math.isfinite(value) else "missed"

    def order(self, value: float) -> float:
        """Return a number to sort cells by, the best first."""
        return value if self._is_time else -value

    def check(self, methods: Sequence[str]) -> None:
        """Reject cells without the objective's method."""
        if self.method is not None and self.method not in methods:
            raise unknown_name("method of the objective", str(self.method), methods)

    @property
    def _is_time(self) -> bool:
        return self.metric.endswith("_to_target")

    def _time(self, of_seeds: Sequence[Sequence[Evaluation]], unit: Unit) -> float:
        times = [time_to_target(each, self.target, self.split, unit) for each in of_seeds]
        known = [time for time in times if time is not None]
        return sum(known) / len(known) if len(known) == len(times) else math.inf

    def _check(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name("metric", str(self.metric), METRICS)
        if self.split not in get_args(Split):
            raise unknown_name("split", str(self.split), SPLITS)
        if not _is_number(self.target) or not 0 < self.target <= 100:
            raise ValueError(f"target must be a percentage in (0, 100], got {self.target!r}")


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


def distribution(axis: Axis) -> BaseDistribution:
    """Return an axis as an Optuna distribution."""
    if isinstance(axis, Range):
        return axis.distribution
    return CategoricalDistribution([plain(value) for value in axis])


def plain(value: Any) -> bool | int | float | str | None:
    """Return a value as Optuna can keep it: lists and mappings as JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
