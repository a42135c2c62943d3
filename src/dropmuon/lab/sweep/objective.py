"""What the cells of a sweep are ranked by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from dropmuon.checks import unknown_name
from dropmuon.lab.analysis.formatting import amount, percent
from dropmuon.lab.analysis.metrics import finals, time_to_target
from dropmuon.lab.analysis.series import SPLITS, Split, Unit, trials
from dropmuon.lab.run import Evaluation

__all__ = ["METRICS", "Objective"]

METRICS = ("test_accuracy", "train_accuracy", "seconds_to_target", "operations_to_target")


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
        number = isinstance(self.target, int | float) and not isinstance(self.target, bool)
        if not number or not 0 < self.target <= 100:
            raise ValueError(f"target must be a percentage in (0, 100], got {self.target!r}")
