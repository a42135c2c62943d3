"""The state and results of all cells of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optuna.trial import FrozenTrial

from dropmuon.lab.sweep.queue import CellHistory
from dropmuon.lab.sweep.search import Objective
from dropmuon.lab.sweep.spec import Cell
from dropmuon.output import aligned

__all__ = ["CellResult", "SweepSummary", "result_of"]

State = Literal["done", "failed", "running", "waiting"]


@dataclass(frozen=True)
class CellResult:
    """The result of one cell, whichever worker ran it.

    Attributes:
        name: of the cell; empty before a search has chosen its settings.
        values: the setting of every axis.
        value: of the objective; infinite for a missed target, None before the cell is finished.
        attempts: how often it was started.
        reason: why it failed, or failed last.
        host: where it ran last.
        directory: of its run, on that machine.
        results: final test and train accuracy, seconds and operations of each method.
    """

    name: str
    values: Mapping[str, Any]
    state: State
    value: float | None
    attempts: int
    reason: str
    host: str
    directory: Path
    results: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class SweepSummary:
    """All cells of a sweep, as a worker leaves them.

    Attributes:
        taken: how many cells this worker finished.
        interrupted: whether it was stopped by Ctrl-C.
    """

    out: Path
    objective: Objective
    cells: tuple[CellResult, ...]
    taken: int = 0
    interrupted: bool = False

    @property
    def done(self) -> int:
        """The number of finished cells."""
        return self._count("done")

    @property
    def failed(self) -> int:
        """The number of cells that were given up."""
        return self._count("failed")

    @property
    def running(self) -> int:
        """The number of cells that a worker is running."""
        return self._count("running")

    @property
    def waiting(self) -> int:
        """The number of cells that wait for a worker."""
        return self._count("waiting")

    @property
    def left(self) -> int:
        """The number of cells that are running or waiting."""
        return self.running + self.waiting

    @property
    def reasons(self) -> dict[str, str]:
        """Why cells failed, by name."""
        return {cell.name: cell.reason for cell in self.cells if cell.state == "failed"}

    def best(self, count: int = 5) -> list[CellResult]:
        """Return the best cells, the very best first."""
        return self._ranked()[:count]

    def counts(self) -> str:
        """Return the numbers of cells by state, in one line."""
        parts = [f"{self.done} of {len(self.cells)} cells done"]
        for state in ("failed", "running", "waiting"):
            if number := self._count(state):
                parts.append(f"{number} {state}")
        return ", ".join(parts)

    def rows(self, count: int | None = None) -> list[list[str]]:
        """Return the rows of a table: a header, the best cells, then the failed ones."""
        axes = list(dict.fromkeys(axis for cell in self.cells for axis in cell.values))
        header = ["", *axes, self.objective.title, "state", "directory"]
        failed = [cell for cell in self.cells if cell.state == "failed"]
        ranked = [(str(place), cell) for place, cell in enumerate(self._ranked(), 1)]
        chosen = [*ranked, *(("", cell) for cell in failed)][:count]
        return [header, *(self._row(place, cell, axes) for place, cell in chosen)]

    def text(self, count: int | None = 10) -> str:
        """Return the counts and the table as plain text."""
        header, *rows = self.rows(count)
        return f"{self.counts()}\n\n{aligned(header, rows)}" if rows else self.counts()

    def _ranked(self) -> list[CellResult]:
        done = [cell for cell in self.cells if cell.state == "done" and cell.value is not None]
        return sorted(done, key=lambda cell: self.objective.order(cell.value or 0.0))

    def _row(self, place: str, cell: CellResult, axes: Sequence[str]) -> list[str]:
        values = [_shown(cell.values[axis]) if axis in cell.values else "–" for axis in axes]
        state = f"failed: {cell.reason.splitlines()[0]}" if cell.reason else cell.state
        shown = [self.objective.shown(cell.value), state if cell.state == "failed" else "done"]
        return [place, *values, *shown, cell.directory.name]

    def _count(self, state: State) -> int:
        return sum(cell.state == state for cell in self.cells)


def result_of(history: CellHistory, cell: Cell | None, out: Path) -> CellResult:
    """Make the result of a cell from its trials; a search has no cell, but values in its trial."""
    last = history.last
    kept = {} if last is None else last.user_attrs
    name = cell.name if cell is not None else str(kept.get("name", ""))
    values = cell.values if cell is not None else {} if last is None else last.params
    state: State = "waiting" if history.state == "due" else history.state
    return CellResult(
        name=name,
        values=values,
        state=state,
        value=last.value if last is not None and state == "done" else None,
        attempts=sum(trial.datetime_start is not None for trial in history.attempts),
        reason=_reason(history.attempts),
        host=str(kept.get("host", "")),
        directory=out / "cells" / name,
        results=kept.get("results", {}),
    )


def _reason(attempts: Sequence[FrozenTrial]) -> str:
    """Return why the last failed attempt failed."""
    for trial in reversed(attempts):
        if trial.state.name == "FAIL":
            lost = f"lost with its worker on {trial.user_attrs.get('host', 'an unknown machine')}"
            return str(trial.user_attrs.get("reason") or trial.user_attrs.get("ended") or lost)
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
