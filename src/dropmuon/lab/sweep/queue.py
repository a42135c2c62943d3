"""The cells of a sweep as trials of one Optuna study, from which any number of workers claim them.

A trial is one attempt at a cell and carries both numbers. Optuna numbers trials in the order they
are added, so if two workers add the same attempt at the same moment, all agree that the one with
the lower number counts. A trial goes from waiting to running to its end and never back: what
happens to a cell next follows from its trials alone, and any worker can do it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from dropmuon.lab.sweep.search import Range, distribution, plain
from dropmuon.lab.sweep.spec import Cell, SweepSpec

__all__ = ["CellHistory", "Claim", "Heartbeat", "LeaseLostError", "Queue"]

End = Literal["error", "impossible", "interrupted", "duplicate"]
"""Why an attempt has failed; an attempt without a reason was lost with its worker."""

_MOST_LOSSES = 5
"""A cell that is lost with its worker more often than this is not retried."""

_LONGEST_REASON = 2000


@dataclass(frozen=True)
class CellHistory:
    """The attempts at a cell, and the state that follows from them.

    Attributes:
        attempts: its trials in order, without duplicates.
        state: "due" means that the next attempt is yet to be added.
    """

    index: int
    attempts: Sequence[FrozenTrial]
    state: Literal["due", "waiting", "running", "done", "failed"]

    @property
    def last(self) -> FrozenTrial | None:
        """The attempt that decides: the one that finished, else the latest."""
        done = (t for t in self.attempts if t.state == TrialState.COMPLETE)
        return next(done, self.attempts[-1] if self.attempts else None)

    def count(self, end: End | None) -> int:
        """Return how many attempts ended this way; None stands for lost ones."""
        ended = [t.user_attrs.get("ended") for t in self.attempts if t.state == TrialState.FAIL]
        return ended.count(end)


@dataclass(frozen=True)
class Claim:
    """A cell that belongs to this worker."""

    index: int
    cell: Cell
    trial: optuna.Trial
    errors: int

    def beat(self, count: int) -> None:
        """Record that its worker is alive."""
        try:
            self.trial.set_user_attr("beat", count)
        except UpdateFinishedTrialError as error:
            raise LeaseLostError from error


class LeaseLostError(Exception):
    """The worker counts as dead, and another one may have taken its cell."""


class Heartbeat:
    """A thread that regularly reports that a worker is alive.

    Args:
        beat: is called with 1, 2, 3, ...; raises LeaseLostError once the cell is another worker's.
        grace: seconds without a beat after which other workers may take the cell.
    """

    def __init__(self, beat: Callable[[int], None], grace: float) -> None:
        self._beat, self._grace = beat, grace
        self._count, self._last, self._is_lost = 0, time.time(), False
        self._one_at_a_time, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._once()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise LeaseLostError if another worker has taken the cell or, after grace, may have."""
        if not self._is_lost and time.time() - self._last > self._grace / 2:
            with suppress(Exception):
                self._once()
        if self._is_lost or time.time() - self._last > self._grace:
            raise LeaseLostError

    def _repeat(self) -> None:
        while not self._is_lost and not self._stop.wait(self._grace / 4):
            with suppress(Exception):  # the storage may be back for the next beat
                self._once()

    def _once(self) -> None:
        with self._one_at_a_time:
            self._count += 1
            try:
                self._beat(self._count)
            except LeaseLostError:
                self._is_lost = True
            else:
                self._last = time.time()


@dataclass
class Queue:
    """The cells that wait, run or are finished.

    Attributes:
        retries: how often a cell that failed with an error is tried again.
        grace: seconds without a beat after which a cell counts as lost with its worker.
    """

    spec: SweepSpec
    cells: Sequence[Cell] | None
    retries: int = 2
    grace: float = 120.0
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)

    def fill(self, study: optuna.Study) -> None:
        """Add every attempt that is due and not there yet."""
        for each in self.histories(study):
            if each.state == "due":
                study.add_trial(self._attempt(each))

    def histories(self, study: optuna.Study) -> list[CellHistory]:
        """Return the history of every cell, in order."""
        size = (self.spec.trials or 0) if self.cells is None else len(self.cells)
        by_cell: list[list[FrozenTrial]] = [[] for _ in range(size)]
        for trial in _counting(study.get_trials(deepcopy=False)):
            if trial.user_attrs["cell"] < size:
                by_cell[trial.user_attrs["cell"]].append(trial)
        return [self._history(index, attempts) for index, attempts in enumerate(by_cell)]

    def claim(self, study: optuna.Study, machine: str) -> Claim | None:
        """Claim the next waiting cell; return None if there is none."""
        while study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            trial = study.ask()
            trials = study.get_trials(deepcopy=False)
            if trial.number not in {each.number for each in _counting(trials)}:
                self.end(study, trial, "duplicate")
                continue
            trial.set_user_attr("machine", machine)
            trial.set_user_attr("host", socket.gethostname())
            index = int(trial.user_attrs["cell"])
            try:
                cell = self._cell(study, trial, index)
            except ValueError as error:
                self.end(study, trial, "impossible", str(error))
                continue
            trial.set_user_attr("name", cell.name)
            errors = self.histories(study)[index].count("error")
            return Claim(index, cell, trial, errors)
        return None

    def rescue(self, study: optuna.Study, machine: str) -> list[str]:
        """End the attempts of dead workers and name them; the caller must hold the machine."""
        lost = []
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            here = trial.user_attrs.get("machine") == machine
            if (here or self._is_silent(trial)) and _tell(study, trial.number):
                lost.append(str(trial.user_attrs.get("name", f"trial {trial.number}")))
        return lost

    def end(self, study: optuna.Study, trial: optuna.Trial, how: End, reason: str = "") -> bool:
        """End a failed attempt; return whether it still belonged to this worker."""
        try:
            trial.set_user_attr("reason", reason[:_LONGEST_REASON])
            trial.set_user_attr("ended", how)
        except UpdateFinishedTrialError:
            return False
        return _tell(study, trial.number)

    def finish(
        self, study: optuna.Study, trial: optuna.Trial, value: float, results: Mapping[str, Any]
    ) -> bool:
        """End a successful attempt; return whether it still belonged to this worker."""
        try:
            trial.set_user_attr("results", dict(results))
        except UpdateFinishedTrialError:
            return False
        return _tell(study, trial.number, value)

    def _history(self, index: int, attempts: list[FrozenTrial]) -> CellHistory:
        attempts.sort(key=lambda trial: int(trial.user_attrs["attempt"]))
        states = [trial.state for trial in attempts]
        if TrialState.COMPLETE in states:
            return CellHistory(index, attempts, "done")
        if TrialState.RUNNING in states:
            return CellHistory(index, attempts, "running")
        if TrialState.WAITING in states:
            return CellHistory(index, attempts, "waiting")
        due = CellHistory(index, attempts, "due")
        enough = due.count("error") > self.retries or due.count(None) > _MOST_LOSSES
        return CellHistory(index, attempts, "failed") if enough or due.count("impossible") else due

    def _attempt(self, history: CellHistory) -> FrozenTrial:
        """Return the next trial of a cell, with the values that a search chose for it before."""
        params: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        before = history.attempts[-1] if history.attempts else None
        if before is not None:
            params, distributions = before.params, before.distributions
        elif self.cells is not None:
            values = self.cells[history.index].values
            params = {axis: plain(value) for axis, value in values.items()}
            distributions = {axis: distribution(self.spec.grid[axis]) for axis in values}
        return create_trial(
            state=TrialState.WAITING,
            params=params,
            distributions=distributions,
            user_attrs={"cell": history.index, "attempt": len(history.attempts)},
        )

    def _cell(self, study: optuna.Study, trial: optuna.Trial, index: int) -> Cell:
        """Return the cell of a trial: the grid's, or one that Optuna chooses now."""
        if self.cells is not None:
            return self.cells[index]
        study.sampler = optuna.samplers.TPESampler(seed=index)
        values = {axis: self._suggested(trial, axis) for axis in self.spec.grid}
        return self.spec.cell(values, prefix=f"trial{index:04d}_")

    def _suggested(self, trial: optuna.Trial, axis: str) -> Any:
        choices = self.spec.grid[axis]
        if not isinstance(choices, Range):
            chosen = trial.suggest_categorical(axis, [plain(value) for value in choices])
            return next(value for value in choices if plain(value) == chosen)
        found = choices.distribution
        if isinstance(found, optuna.distributions.IntDistribution):
            return trial.suggest_int(axis, found.low, found.high, step=found.step, log=found.log)
        return trial.suggest_float(axis, found.low, found.high, step=found.step, log=found.log)

    def _is_silent(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has had no beat for too long, by this worker's own clock."""
        beat, now = int(trial.user_attrs.get("beat", 0)), time.monotonic()
        seen, since = self._seen.get(trial.number, (-1, now))
        if seen != beat:
            self._seen[trial.number] = (beat, now)
            return False
        return now - since > self.grace


def _counting(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the first trial of every attempt at every cell."""
    first: dict[tuple[int, int], FrozenTrial] = {}
    for trial in trials:
        if "cell" in trial.user_attrs:
            first.setdefault((trial.user_attrs["cell"], trial.user_attrs["attempt"]), trial)
    return list(first.values())


def _tell(study: optuna.Study, number: int, value: float | None = None) -> bool:
    state = TrialState.FAIL if value is None else TrialState.COMPLETE
    try:
        study.tell(number, value, state)
    except (UpdateFinishedTrialError, ValueError):  # someone else has ended it
        return False
    return True
