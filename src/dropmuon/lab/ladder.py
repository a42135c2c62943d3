"""The directory of a race: a ladder of budgets, and a run for each of its rungs.

race.json     the ladder, the settings at a budget of 1, and the rungs that are finished
rung-0.50/    the run at half of that budget, as `dropmuon compare` writes it; likewise the others
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dropmuon.lab.run import RunDirectory
from dropmuon.output import write_json

__all__ = ["LADDER", "RaceDirectory", "checked_ladder"]

LADDER = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Budgets as multiples of the baseline's cost of all epochs, by default."""

_FORMAT = 1
_FILE = "race.json"


@dataclass(frozen=True)
class RaceDirectory:
    """The files of one race."""

    path: Path

    def exists(self) -> bool:
        """Return whether a race was begun here."""
        return (self.path / _FILE).is_file()

    @property
    def ladder(self) -> tuple[float, ...]:
        """The rungs, ascending."""
        return checked_ladder(self._read()["ladder"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the comparison at a budget of 1."""
        return dict(self._read()["settings"])

    @property
    def finished(self) -> tuple[float, ...]:
        """The rungs whose comparison has ended."""
        return tuple(self._read()["finished"])

    def rung(self, rung: float) -> RunDirectory:
        """Return the run at one of the budgets."""
        name = f"{rung:.2f}" if round(rung, 2) == rung else f"{rung:g}"
        return RunDirectory(self.path / f"rung-{name}")

    def begin(self, ladder: Iterable[float], settings: dict[str, Any]) -> None:
        """Record ladder and settings of a new race, in a directory that is new or empty."""
        RunDirectory(self.path).check_usable(settings, resume=False)
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"format": _FORMAT, "ladder": list(ladder), "settings": settings}
        write_json(self.path / _FILE, {**content, "finished": []})

    def extend(self, ladder: Iterable[float]) -> None:
        """Add the rungs of a ladder that has all those of the race."""
        rungs = checked_ladder(ladder)
        if lost := [f"{rung:g}" for rung in self.ladder if rung not in rungs]:
            raise ValueError(
                f"ladder must keep the rungs of the race, got none of {', '.join(lost)}; only add "
                "to it"
            )
        content = self._read()
        if content["ladder"] != list(rungs):
            write_json(self.path / _FILE, {**content, "ladder": list(rungs)})

    def finish(self, rung: float) -> None:
        """Record that the comparison of a rung has ended."""
        content = self._read()
        content["finished"] = sorted({*content["finished"], rung})
        write_json(self.path / _FILE, content)

    def withdraw(self) -> None:
        """Remove the record of a race."""
        (self.path / _FILE).unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        path = self.path / _FILE
        try:
            found = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ValueError(
                f"{self.path} is not a race: it has no {_FILE}; give a directory that "
                "`dropmuon race --out` made"
            ) from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}; the race is damaged") from error
        if not isinstance(found, dict) or not {"ladder", "settings", "finished"} <= set(found):
            raise ValueError(f"{path} must have ladder, settings and finished; the race is damaged")
        return found


def checked_ladder(rungs: Iterable[object]) -> tuple[float, ...]:
    """Return the rungs as floats, or raise ValueError if they are no ladder."""
    given = list(rungs)
    for rung in given:
        is_number = isinstance(rung, int | float) and not isinstance(rung, bool)
        if not is_number or not 0 < rung < math.inf:  # type: ignore[operator]
            raise ValueError(f"ladder must have positive numbers, got {rung!r}")
    ladder = tuple(float(rung) for rung in given)  # type: ignore[arg-type]
    if len(ladder) < 2:
        raise ValueError(
            f"ladder must have at least two rungs, got {given}; one budget is what `dropmuon "
            "compare` is for"
        )
    for one, other in pairwise(ladder):
        if other <= one:
            raise ValueError(f"ladder must increase, got {other:g} after {one:g}; sort the rungs")
    return ladder
