"""Many comparisons as one study, taken by any number of workers on any number of machines.

A worker takes a cell when it has its machine for itself, runs it into a directory, and tells the
study. What a dead worker leaves behind is found and taken up by the others, or by the next one.
"""

from __future__ import annotations

import errno
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from dropmuon.lab.analysis import results
from dropmuon.lab.analysis.metrics import finals
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.sweep.grids import SweepSpec, read_spec
from dropmuon.lab.sweep.leases import Heartbeat, LeaseLostError, Machine
from dropmuon.lab.sweep.preparing import check_ready, is_resumable, prepare
from dropmuon.lab.sweep.queues import Claim, Queue
from dropmuon.lab.sweep.studies import open_study
from dropmuon.lab.sweep.tallies import SweepSummary, result_of
from dropmuon.lab.train.compare import compare
from dropmuon.lab.watch import Watcher, Watchers

__all__ = ["SweepEvent", "SweepSummary", "run_sweep", "sweep"]

Kind = Literal["opened", "waiting", "started", "finished", "failed", "returned", "lost"]

_STORAGE_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class SweepEvent:
    """Something that a person at the terminal would like to know.

    Attributes:
        kind: opened, waiting (for the machine or for other workers), started, finished, failed
            (for good or to be tried again), returned (to the queue by Ctrl-C), lost (and found).
        text: the same in one line.
        cell: its name, empty if it is about none.
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
    """Be a worker of the sweep in a file; see `sweep`."""
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
    """Be a worker until every cell is over, and say how they came out.

    Ctrl-C puts the cell back and ends the worker; the summary says so.

    Args:
        spec: what is swept.
        out: the directory of the sweep; its `cells` has one run directory per cell.
        storage: URL of a database that workers on other machines share; a file in `out` without.
        max_cells: end after so many.
        on_event: is told what happens.
        retries: how often a cell that died of an error is tried again.
        grace: seconds without a sign of life after which a cell is taken from its worker.
        watcher: of the cells' training.
        finish: what to do with a run that is over; without, its results are written.
    """
    prepare(spec, out)
    cells = spec.cells() if spec.search == "grid" else None
    check_ready(cells or spec.probes())
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
            "the same command again, and it goes on"
        ) from error


class _Worker:
    """Takes cells one after another."""

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
                    self._wait("other workers' cells" if alone else "this machine")
        except KeyboardInterrupt:
            return self.summary(interrupted=True)
        return self.summary()

    def summary(self, interrupted: bool = False) -> SweepSummary:
        cells = self._queue.cells
        found = (
            result_of(each, None if cells is None else cells[each.index], self._out)
            for each in self._queue.standings(self._study)
        )
        return SweepSummary(
            self._out, self._queue.spec.objective, tuple(found), self._taken, interrupted
        )

    def _is_over(self) -> bool:
        over = {"done", "failed"}
        return all(each.state in over for each in self._queue.standings(self._study))

    def _take(self) -> bool:
        """Find what was lost, and run the next cell if there is one."""
        for name in self._queue.rescue(self._study, self._machine.id):
            self._say(SweepEvent("lost", f"{name} was lost with its worker, and waits again", name))
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
        resume = claim.errors < self._queue.retries and is_resumable(directory, claim.cell.config)
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
            text = f"{claim.cell.name} failed{' and is tried again' if again else ''}: {reason}"
            self._say(SweepEvent("failed", text, claim.cell.name))

    def _return(self, claim: Claim) -> None:
        self._queue.end(self._study, claim.trial, "interrupted")
        self._queue.fill(self._study)
        name = claim.cell.name
        self._say(SweepEvent("returned", f"{name} was put back to the queue", name))

    def _wait(self, what: str) -> None:
        if self._waits_for != what:
            self._waits_for = what
            self._say(SweepEvent("waiting", f"waiting for {what}"))
        self._pause = min(_LONGEST_PAUSE, self._queue.grace / 4, 1.5 * self._pause + 0.1)
        time.sleep(self._pause)


class _Check(Watcher):
    """Stops a cell that is this worker's no more."""

    def __init__(self, heart: Heartbeat) -> None:
        self._heart = heart

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        self._heart.check()


def _ends(run: RunDirectory) -> dict[str, dict[str, float]]:
    """Where every method ended, small enough to keep in the study."""
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
    results.write(run, results.summarize(run))


def _nothing(event: SweepEvent) -> None:
    """For workers that nobody watches."""
