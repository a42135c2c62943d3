"""One worker: its cells become runs, whatever happens on the way."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
import yaml

from dropmuon.lab.run import RunDirectory
from dropmuon.lab.sweep import run_sweep, sweep
from dropmuon.lab.sweep.shared import Machine
from dropmuon.lab.watch import Watcher
from tests.lab.small_sweeps import BASE, spec_of


def test_every_cell_becomes_a_run_once_and_a_second_worker_finds_nothing_to_do(tmp_path):
    out = tmp_path / "sweep"
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, "grid": {"lr": [0.1, 0.01]}}))
    part = run_sweep(path, out, max_cells=1)
    assert (part.done, part.waiting, part.taken) == (1, 1, 1)
    whole = run_sweep(path, out)
    assert (whole.done, whole.left, whole.taken) == (2, 0, 1)
    events = []
    again = run_sweep(path, out, on_event=events.append)
    assert (again.done, again.taken, [e.kind for e in events]) == (2, 0, ["opened"])
    for cell in again.cells:
        run = RunDirectory(cell.directory)
        assert run.config["lr"] == cell.values["lr"]
        assert run.evaluations()[-1].test_accuracy == cell.value
        assert (cell.directory / "results.json").exists()
    assert again.best(1)[0].value == max(
        cell.value for cell in again.cells if cell.value is not None
    )
    assert "2 of 2 cells done" in again.text()
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep(spec_of({"lr": [0.1]}), out)
    with pytest.raises(ValueError, match="is not a sweep"):
        sweep(spec_of({"lr": [0.1]}), again.cells[0].directory)


class Trouble(Watcher):
    """Raises something at the first steps of so many attempts."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error, self.times = error, times

    def advance(self, method, seed, step, seconds):
        if self.times:
            self.times -= 1
            raise self.error


@pytest.mark.parametrize(("times", "done"), [(2, 1), (3, 0)])
def test_a_cell_that_dies_is_tried_three_times_in_all_and_its_reason_is_kept(tmp_path, times, done):
    trouble = Trouble(RuntimeError("out of luck"), times)
    summary = sweep(spec_of(), tmp_path / "sweep", watcher=trouble)
    assert (summary.done, summary.failed, summary.left) == (done, 1 - done, 0)
    assert summary.cells[0].attempts == 3
    assert summary.cells[0].reason == "RuntimeError: out of luck"
    assert ("failed: RuntimeError: out of luck" in summary.text()) == (not done)


def test_an_impossible_cell_fails_at_once_and_alone(tmp_path):
    summary = sweep(spec_of({"batch_size": [100_000, 512]}), tmp_path / "sweep")
    assert (summary.done, summary.failed, summary.cells[0].attempts) == (1, 1, 1)
    assert "batch_size must be at most" in next(iter(summary.reasons.values()))


def test_ctrl_c_returns_the_cell_and_the_next_worker_resumes_it(tmp_path):
    spec, events = spec_of(base={"epochs": 2}), []
    trouble = Trouble(KeyboardInterrupt(), 1)
    summary = sweep(spec, tmp_path / "sweep", watcher=trouble, on_event=events.append)
    assert (summary.interrupted, summary.done, summary.waiting) == (True, 0, 1)
    assert [event.kind for event in events] == ["opened", "started", "returned"]
    again = sweep(spec, tmp_path / "sweep")
    assert (again.interrupted, again.done, again.cells[0].attempts) == (False, 1, 2)


def test_a_full_disk_ends_the_worker_and_not_the_cells(tmp_path):
    trouble = Trouble(OSError(28, "No space left on device"), 1)
    with pytest.raises(OSError, match="No space left"):
        sweep(spec_of(), tmp_path / "sweep", watcher=trouble)
    assert sweep(spec_of(), tmp_path / "sweep").done == 1


def test_a_damaged_cell_directory_is_started_anew(tmp_path):
    spec = spec_of()
    directory = tmp_path / "sweep" / "cells" / spec.cells()[0].name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{")
    assert sweep(spec, tmp_path / "sweep").done == 1


def test_a_torn_journal_is_mended_and_a_lost_one_costs_no_training(tmp_path):
    out = tmp_path / "sweep"
    sweep(spec_of({"lr": [0.1, 0.2]}), out, max_cells=1)
    with (out / "study.journal").open("a") as journal:
        journal.write('{"op_code":')
    first = sweep(spec_of({"lr": [0.1, 0.2]}), out)
    assert (first.done, first.taken) == (2, 1)
    (out / "study.journal").write_text("{}}\n{}\n")
    with pytest.raises(ValueError, match=r"study\.journal is damaged"):
        sweep(spec_of({"lr": [0.1, 0.2]}), out)
    (out / "study.journal").unlink()
    never = Trouble(RuntimeError("trained"), 9)
    assert sweep(spec_of({"lr": [0.1, 0.2]}), out, watcher=never).done == 2


def test_a_worker_waits_for_its_machine_and_says_so_once(tmp_path):
    events = []
    with ExitStack() as other:
        assert other.enter_context(Machine().alone())

        def on_event(event):
            events.append(event.text)
            if event.kind == "waiting":
                other.close()

        assert sweep(spec_of(), tmp_path / "sweep", on_event=on_event, grace=1).done == 1
    assert events.count("waiting for this machine") == 1


def test_tpe_takes_as_many_cells_as_it_may_within_its_ranges(tmp_path):
    ranges = {"low": 0.001, "high": 0.5, "log": True}
    grid = {"lr": ranges, "channels": [[4], [8]], "batch_size": {"low": 256, "high": 512}}
    spec = spec_of(grid, search="tpe", trials=3, objective="operations_to_target")
    sweep(spec, tmp_path / "sweep", max_cells=1)
    summary = sweep(spec, tmp_path / "sweep")
    assert (summary.done, summary.taken) == (3, 2)
    for cell in summary.cells:
        config = RunDirectory(cell.directory).config
        assert 0.001 <= config["lr"] <= 0.5
        assert config["batch_size"] in range(256, 513)
        assert config["channels"] in ([4], [8])
        assert cell.value == math.inf
