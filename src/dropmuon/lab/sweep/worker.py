"""Workers, any number on any number of machines, that run the cells of one sweep.

A worker claims a cell when it has its machine to itself, runs it into a directory, and records the
result in the study. If a worker dies, the others, or the next one to start, find its cell and
resume it.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
import torch
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from dropmuon.lab import analysis, data
from dropmuon.lab.analysis.metrics import finals
from dropmuon.lab.config import Config
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.sweep.queue import Claim, Heartbeat, LeaseLostError, Queue
from dropmuon.lab.sweep.shared import Machine, open_study, prepare_directory
from dropmuon.lab.sweep.spec import Cell, SweepSpec, read_spec
from dropmuon.lab.sweep.summary import SweepSummary, result_of
from dropmuon.lab.train.compare import compare
from dropmuon.lab.watch import Watcher, Watchers

__all__ = ["SweepEvent", "run_sweep", "sweep"]

Kind = Literal["opened", "waiting", "started", "finished", "failed", "returned", "lost"]

_STORAGE_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class SweepEvent:
    """An event to show at the terminal.

    Attributes:
        kind: opened, waiting (for the machine or for other workers), started, finished, failed
            (for good or to be tried again), returned (to the queue by Ctrl-C), lost (with its
            worker, or to another one).
        text: the event in one line.
        cell: the name of its cell, empty if it is about none.
    """

    kind: Kind
    text: str
    cell: str = ""


OnEvent = Callable[[SweepEvent], None]
Finish = Callable[[RunDirectory], None]


def run_sweep(
    path: Path,
    out: Path,
    storage: str | None = None,
    max_cells: int | None = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> SweepSummary:
    """Work on the sweep in a file; see `sweep`."""
    return sweep(read_spec(path), out, storage, max_cells, on_event, **settings)


def sweep(
    spec: SweepSpec,
    out: Path,
    storage: str | None = None,
    max_cells: int | None = None,
    on_event: OnEvent | None = None,
    *,
    retries: int = 2,
    grace: float = 120.0,
    watcher: Watcher | None = None,
    finish: Finish | None = None,
) -> SweepSummary:
    """Work on a sweep until every cell is finished, and return a summary of all cells.

    Ctrl-C returns the current cell to the queue and ends the worker; the summary says so.

    Args:
        spec: the specification of the sweep.
        out: the directory of the sweep; its `cells` has one run directory per cell.
        storage: URL of a database shared with workers on other machines; by default a file in
            `out`.
        max_cells: stop after this many cells.
        on_event: called with every event.
        retries: how often a cell that failed with an error is tried again.
        grace: seconds without a heartbeat after which a cell is taken from its worker.
        watcher: of the cells' training.
        finish: called with every finished run; by default it writes the run's results.
    """
    prepare_directory(spec, out)
    cells = spec.cells() if spec.search == "grid" else None
    _check_ready(cells or spec.probes())
    queue = Queue(spec, cells, retries, grace)
    try:
        study = open_study(spec, out, storage, queue.fill)
        say = on_event or _nothing
        worker = _Worker(queue, study, out, say, watcher or Watcher(), finish or _write_results)
        say(SweepEvent("opened", worker.summary().counts()))
        return worker.work(max_cells)
    except (StorageInternalError, SQLAlchemyError) as error:
        raise OSError(
            f"the study cannot be reached: {str(error.__cause__ or error).splitlines()[0]}; start "
            "the same command again to resume the sweep"
        ) from error


class _Worker:
    """A loop that claims and runs cells, one after another."""

    def __init__(
        self,
        queue: Queue,
        study: optuna.Study,
        out: Path,
        say: OnEvent,
        watcher: Watcher,
        finish: Finish,
    ) -> None:
        self._queue, self._study, self._out = queue, study, out
        self._say, self._watcher, self._finish = say, watcher, finish
        self._machine = Machine()
        self._taken, self._waits_for, self._pause = 0, "", 0.0

    def work(self, max_cells: int | None) -> SweepSummary:
        try:
            while (max_cells is None or self._taken < max_cells) and not self._is_over():
                with self._machine.alone() as alone:
                    took = self._take() if alone else False
                if not took:
                    self._wait("the cells of other workers" if alone else "this machine")
        except KeyboardInterrupt:
            return self.summary(interrupted=True)
        return self.summary()

    def summary(self, interrupted: bool = False) -> SweepSummary:
        cells = self._queue.cells
        found = (
            result_of(each, None if cells is None else cells[each.index], self._out)
            for each in self._queue.histories(self._study)
        )
        return SweepSummary(
            self._out, self._queue.spec.objective, tuple(found), self._taken, interrupted
        )

    def _is_over(self) -> bool:
        over = {"done", "failed"}
        return all(each.state in over for each in self._queue.histories(self._study))

    def _take(self) -> bool:
        """Rescue lost cells, then run the next cell; return whether there was one."""
        for name in self._queue.rescue(self._study, self._machine.id):
            self._say(SweepEvent("lost", f"{name} was lost with its worker and waits again", name))
        self._queue.fill(self._study)
        claim = self._queue.claim(self._study, self._machine.id)
        if claim is None:
            return False
        self._waits_for, self._pause = "", 0.0
        self._run(claim)
        self._queue.fill(self._study)
        return True

    def _run(self, claim: Claim) -> None:
        name, trial = claim.cell.name, claim.trial
        self._say(SweepEvent("started", f"{name} started", name))
        directory = self._out / "cells" / name
        resume = claim.errors < self._queue.retries and _is_resumable(directory, claim.cell.config)
        try:
            run = self._trained(claim, directory, resume)
            evaluations = run.evaluations()
            value = self._queue.spec.objective.value(evaluations)
        except LeaseLostError:
            self._say(SweepEvent("lost", f"{name} was taken by another worker", name))
        except KeyboardInterrupt:
            self._return(claim)
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _STORAGE_FULL:
                self._return(claim)
                raise
            self._fail(claim, error, impossible=isinstance(error, ValueError) and not resume)
        else:
            if self._queue.finish(self._study, trial, value, _ends(run)):
                self._taken += 1
                shown = self._queue.spec.objective.shown(value)
                self._say(SweepEvent("finished", f"{name} finished: {shown}", name))

    def _trained(self, claim: Claim, directory: Path, resume: bool) -> RunDirectory:
        if not resume and directory.exists():
            shutil.rmtree(directory)
        with Heartbeat(lambda count: self._beat(claim, count), self._queue.grace) as heart:
            watcher = Watchers([_Check(heart), self._watcher])
            run = compare(claim.cell.config, directory, resume=resume, watcher=watcher)
            self._finish(run)
            heart.check()
        return run

    def _beat(self, claim: Claim, count: int) -> None:
        self._machine.keep()
        claim.beat(count)

    def _fail(self, claim: Claim, error: Exception, impossible: bool) -> None:
        reason = "".join(traceback.format_exception_only(error)).strip()
        if self._queue.end(
            self._study, claim.trial, "impossible" if impossible else "error", reason
        ):
            again = not impossible and claim.errors < self._queue.retries
            name, then = claim.cell.name, " and will be tried again" if again else ""
            self._say(SweepEvent("failed", f"{name} failed{then}: {reason}", name))

    def _return(self, claim: Claim) -> None:
        self._queue.end(self._study, claim.trial, "interrupted")
        self._queue.fill(self._study)
        name = claim.cell.name
        self._say(SweepEvent("returned", f"{name} was returned to the queue", name))

    def _wait(self, what: str) -> None:
        if self._waits_for != what:
            self._waits_for = what
            self._say(SweepEvent("waiting", f"waiting for {what}"))
        self._pause = min(_LONGEST_PAUSE, self._queue.grace / 4, 1.5 * self._pause + 0.1)
        time.sleep(self._pause)


class _Check(Watcher):
    """A watcher that stops a cell which no longer belongs to this worker."""

    def __init__(self, heart: Heartbeat) -> None:
        self._heart = heart

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        self._heart.check()


def _check_ready(cells: Sequence[Cell]) -> None:
    """Refuse to start if the data or the device is missing, since all cells would fail."""
    configs = [cell.config for cell in cells]
    for device in dict.fromkeys(config.device for config in configs):
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"device {device!r} is not on this machine: {reason}") from error
    wanted = dict.fromkeys((each.dataset, each.context, each.classes) for each in configs)
    for name, context, classes in wanted:
        data.load(name, device="cpu", context=context, classes=classes)


def _is_resumable(directory: Path, config: Config) -> bool:
    """Return whether a cell's directory holds a run with exactly these settings."""
    asked: dict[str, Any] = json.loads(json.dumps(config.to_json()))
    try:
        return RunDirectory(directory).config == asked
    except (OSError, ValueError):
        return False


def _ends(run: RunDirectory) -> dict[str, dict[str, float]]:
    """Return where every method ended, small enough to keep in the study."""
    evaluations = run.evaluations()
    return {
        each.method: {
            "test_accuracy": each.test.mean,
            "train_accuracy": each.train.mean,
            "seconds": each.seconds,
            "operations": each.operations,
        }
        for each in finals(evaluations, evaluations[0].method)
    }


def _write_results(run: RunDirectory) -> None:
    analysis.write_results(run, analysis.summarize(run))


def _nothing(event: SweepEvent) -> None:
    """Ignore an event."""
