"""Many workers as real processes that start together, die and wait."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from dropmuon.lab.run import RunDirectory
from dropmuon.lab.sweep import SweepSpec, sweep
from dropmuon.lab.sweep import worker as worker_module
from dropmuon.lab.sweep.queue import Heartbeat, Queue
from dropmuon.lab.sweep.shared import LOCK_VARIABLE, open_study
from dropmuon.lab.watch import Watcher
from tests.lab.small_sweeps import spec_of


@pytest.fixture(scope="module")
def processes():
    """Real processes; what takes long to import is imported once for all of them."""
    context = multiprocessing.get_context("forkserver")
    slow = ["torch._dynamo", "torch.utils.flop_counter", "sklearn.datasets", "hypothesis", "pytest"]
    context.set_forkserver_preload(["dropmuon.lab.sweep", *slow])
    yield context
    server: Any = forkserver._forkserver
    server._stop()


@contextmanager
def started(found: Sequence[BaseProcess]) -> Iterator[None]:
    """Run processes inside the block; none of them lives on after it."""
    try:
        for process in found:
            process.start()
        yield
    finally:
        for process in found:
            if process.pid is not None:
                process.kill()
                process.join()


def answer(answers, running: Sequence[BaseProcess]):
    """Wait for an answer as long as no process has failed."""
    while True:
        try:
            return answers.get(timeout=0.5)
        except queue.Empty:
            assert all(process.exitcode in {None, 0} for process in running)


def together(processes, target, arguments):
    """Let processes start at the same moment and run to their end; return their answers."""
    start, answers = processes.Barrier(len(arguments)), processes.Queue()
    running = [processes.Process(target=target, args=(*a, start, answers)) for a in arguments]
    with started(running):
        found = [answer(answers, running) for _ in running]
        for process in running:
            process.join()
            assert process.exitcode == 0
    return found


def worker(spec, out, storage, lock, start, answers):
    os.environ[LOCK_VARIABLE] = str(lock)
    start.wait()
    answers.put(sweep(SweepSpec.of(spec), out, storage).taken)


def claimer(spec, out, storage, start, answers):
    """Add all cells in a race, and then take them in a race."""
    queue = Queue(SweepSpec.of(spec), SweepSpec.of(spec).cells())
    study = open_study(queue.spec, out, storage, lambda study: None)
    start.wait()
    queue.fill(study)
    taken = []
    while claim := queue.claim(study, f"machine {os.getpid()}"):
        taken.append(claim.index)
        queue.finish(study, claim.trial, 0.5, {})
    answers.put(taken)


def storage_in(directory: Path, kind: str) -> str | None:
    return None if kind == "journal" else f"sqlite:///{directory / 'study.db'}"


class Stall(Watcher):
    """Sets an event at a step and trains no further."""

    def __init__(self, step, reached) -> None:
        self.step, self.reached = step, reached

    def advance(self, method, seed, step, seconds):
        if step >= self.step:
            self.reached.set()
            threading.Event().wait()


def victim(spec, out, lock, step, reached):
    os.environ[LOCK_VARIABLE] = str(lock)
    sweep(SweepSpec.of(spec), out, watcher=Stall(step, reached))


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_cells_added_and_taken_in_a_race_are_taken_once_each(processes, tmp_path, kind):
    spec = spec_of({"lr": [0.01 * k for k in range(1, 9)]})
    arguments = (spec.to_json(), tmp_path, storage_in(tmp_path, kind))
    open_study(spec, tmp_path, arguments[2], lambda study: None)
    taken = together(processes, claimer, [arguments] * 3)
    assert sorted(index for each in taken for index in each) == list(range(8))


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_workers_that_start_at_the_same_moment_share_the_cells(processes, tmp_path, kind):
    spec, out = spec_of({"lr": [0.1, 0.05, 0.02, 0.01]}), tmp_path / "sweep"
    storage = storage_in(tmp_path, kind)
    arguments = [(spec.to_json(), out, storage, tmp_path / f"{k}.lock") for k in range(3)]
    assert sum(together(processes, worker, arguments)) == 4
    summary = sweep(spec, out, storage)
    assert (summary.done, summary.taken) == (4, 0)
    assert [cell.attempts for cell in summary.cells] == [1] * 4
    study = open_study(spec, out, storage, lambda study: None)
    states = [trial.state.name for trial in study.trials if "cell" in trial.user_attrs]
    assert states == ["COMPLETE"] * 4


@pytest.mark.parametrize("place", ["same machine", "other machine"])
def test_a_killed_worker_loses_nothing_and_its_cell_is_resumed(
    processes, tmp_path, monkeypatch, place
):
    spec, out = spec_of(base={"epochs": 15, "batch_size": 16}), tmp_path / "sweep"
    lock = Path(os.environ[LOCK_VARIABLE]) if place == "same machine" else tmp_path / "other.lock"
    reached = processes.Event()
    killed = processes.Process(target=victim, args=(spec.to_json(), out, lock, 300, reached))
    with started([killed]):
        while not reached.wait(0.1):
            assert killed.is_alive()
    run = RunDirectory(out / "cells" / spec.cells()[0].name)
    before, events = run.evaluations(), []
    assert len(before) >= 3
    grace = 1000.0 if place == "same machine" else 1.0
    monkeypatch.setattr(worker_module, "Heartbeat", lambda beat, _: Heartbeat(beat, 1000.0))
    summary = sweep(spec, out, on_event=events.append, grace=grace)
    assert (summary.done, summary.cells[0].attempts) == (1, 2)
    assert [event.kind for event in events if event.kind == "lost"] == ["lost"]
    after = run.evaluations()
    assert after[: len(before) - 1] == before[:-1]
    assert [round(each.epoch) for each in after] == list(range(16))
