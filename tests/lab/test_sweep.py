"""Sweeps: grids by their laws, and workers as real processes that start together, die and wait."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.lab.run import Evaluation, RunDirectory
from dropmuon.lab.sweep import run_sweep, sweep
from dropmuon.lab.sweep.grids import SweepSpec, read_spec
from dropmuon.lab.sweep.leases import LOCK_VARIABLE, Heartbeat, LeaseLostError, Machine
from dropmuon.lab.sweep.objectives import Objective
from dropmuon.lab.sweep.queues import Queue
from dropmuon.lab.sweep.studies import open_study
from dropmuon.lab.watch import Watcher

BASE = {
    "dataset": "digits",
    "model": "mlp",
    "channels": [8],
    "epochs": 1,
    "batch_size": 256,
    "seeds": [0],
    "methods": ["muon"],
    "evaluations_per_epoch": 1,
    "train_examples": 100,
    "threads": 1,
}
EXAMPLES = Path(__file__).parents[2] / "examples" / "sweeps"


def spec_of(grid=None, base=None, **rest) -> SweepSpec:
    return SweepSpec.of({"base": BASE | (base or {}), "grid": grid or {}, **rest})


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "machine.lock"))


@pytest.fixture(scope="module")
def processes():
    """Real processes; what takes long to import is imported once for all of them."""
    context = multiprocessing.get_context("forkserver")
    slow = ["torch._dynamo", "torch.utils.flop_counter", "sklearn.datasets", "hypothesis", "pytest"]
    context.set_forkserver_preload(["dropmuon.lab.sweep", *slow])
    return context


# --- what is asked for ---

AXES = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=3, unique=True),
        "batch_size": st.lists(st.integers(1, 10**5), min_size=1, max_size=3, unique=True),
        "channels": st.lists(
            st.lists(st.integers(1, 64), min_size=1, max_size=3),
            min_size=1,
            max_size=3,
            unique_by=tuple,
        ),
        "seeds": st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
        "method": st.lists(
            st.sampled_from(["muon", "drop-muon:uniform", "drop-muon:nice-2", "adamw"]),
            min_size=1,
            max_size=3,
            unique=True,
        ),
        "augment": st.just([False, True]),
    },
)


@settings(max_examples=30)
@given(AXES)
def test_a_grid_has_as_many_cells_as_the_product_of_its_axes_each_with_its_own_name(grid):
    cells = spec_of(grid).cells()
    assert len(cells) == math.prod(len(axis) for axis in grid.values())
    assert len({cell.name.lower() for cell in cells}) == len(cells)
    assert all(cell.name.replace("-", "").replace("_", "").isascii() for cell in cells)
    assert not any(set(cell.name) & set('/\\:*?"<>| ') for cell in cells)


@settings(max_examples=30)
@given(AXES, st.sampled_from(["test_accuracy", {"metric": "seconds_to_target", "target": 70}]))
def test_a_sweep_reads_back_what_it_writes(grid, objective):
    spec = spec_of(grid, objective=objective)
    assert SweepSpec.of(spec.to_json()) == spec
    assert SweepSpec.of(yaml.safe_load(yaml.safe_dump(spec.to_json()))) == spec
    assert SweepSpec.of(spec.to_json()).study_name == spec.study_name


def test_options_of_several_methods_can_be_one_axis() -> None:
    base = {**BASE, "methods": ["muon", "sgd"], "options": {"sgd": {"momentum": 0.5}}}
    pairs = [{"muon": {"lr": a}, "sgd": {"lr": b}} for a, b in ((0.1, 0.01), (0.2, 0.02))]
    cells = SweepSpec.of({"base": base, "grid": {"options": pairs}}).cells()
    assert [dict(c.config.options) for c in cells] == [
        {"sgd": {"momentum": 0.5, "lr": b}, "muon": {"lr": a}}
        for a, b in ((0.1, 0.01), (0.2, 0.02))
    ]
    assert len({c.name for c in cells}) == 2


def test_a_cell_has_the_settings_of_its_place_on_every_axis():
    spec = spec_of({"method": ["sgd", "muon"], "seeds": [3, 5], "options.sgd.lr": [0.1, 0.2]})
    configs = [cell.config for cell in spec.cells()]
    assert [(c.methods[0], c.seeds[0], dict(c.options)) for c in configs] == [
        ("sgd", 3, {"sgd": {"lr": 0.1}}),
        ("sgd", 3, {"sgd": {"lr": 0.2}}),
        ("sgd", 5, {"sgd": {"lr": 0.1}}),
        ("sgd", 5, {"sgd": {"lr": 0.2}}),
        ("muon", 3, {}),
        ("muon", 5, {}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"gird": {}}, "did you mean 'grid'"),
        ({"grid": {"batchsize": [1]}}, "did you mean 'batch_size'"),
        ({"base": {"epoch": 1}}, "did you mean 'epochs'"),
        ({"grid": {"method": ["ful"]}}, "did you mean 'full'"),
        ({"grid": {"lr": [0.1, -1.0]}}, "lr=-1.0: lr must be a positive number"),
        ({"grid": {"lr": 0.1}}, "must be a list"),
        ({"grid": {"lr": [0.1, 0.1]}}, "twice"),
        ({"grid": {"options.muon": [1]}}, "options.METHOD.KEY"),
        ({"grid": {"method": ["muon"], "options.mun.lr": [1]}}, "did you mean 'muon'"),
        ({"grid": {"options.muon.lrr": [1]}, "base": BASE}, "did you mean 'lr'"),
        ({"grid": {"lr": {"low": 0.1, "high": 1.0}}}, "goes with search: tpe"),
        ({"grid": {"epochs": list(range(1, 400)), "seeds": list(range(400))}}, "at most 100000"),
        ({"trials": 3}, "goes with search: tpe"),
        ({"search": "tpe", "grid": {"lr": [0.1]}}, "trials must say"),
        ({"search": "tpi"}, "did you mean 'tpe'"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": 1, "hihg": 2}}}, "'high'"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": 2, "high": 1}}}, "below high"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": -1, "high": 1}}}, "lr=-1"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": 0, "high": 1, "log": True}}}, "log"),
        ({"objective": {"metric": "test_acuracy"}}, "did you mean 'test_accuracy'"),
        ({"objective": {"metric": "seconds_to_target", "target": 900}}, "in (0, 100]"),
        ({"objective": {"method": "adam"}, "base": {"methods": ["adamw"]}}, "'adamw'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(content, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        SweepSpec.of(content)
    assert message in str(error.value)


def test_the_paper_s_grid_has_its_180_configurations_of_six_methods():
    cells = read_spec(EXAMPLES / "paper.yaml").cells()
    assert len(cells) == 5 * 3 * 6 * 2
    assert {len(cell.config.methods) for cell in cells} == {6}
    assert {len(cell.config.seeds) for cell in cells} == {5}


# --- what cells are ranked by ---


def evaluation(method, seed, step, accuracy) -> Evaluation:
    return Evaluation(method, seed, step, step, 2.0 * step, 1e9 * step, accuracy, 0.1, accuracy, 0)


def test_an_objective_is_the_mean_over_seeds_of_the_best_method():
    seen = [
        evaluation(method, seed, step, value)
        for method, seed, values in [("a", 0, (0.5, 0.9)), ("a", 1, (0.9, 0.8)), ("b", 0, (0, 0.6))]
        for step, value in enumerate(values, 1)
    ]
    assert Objective.of("test_accuracy").value(seen) == pytest.approx(0.85)
    assert Objective.of({"method": "b"}).value(seen) == pytest.approx(0.6)
    reached = Objective.of({"metric": "seconds_to_target", "target": 85})
    assert reached.value(seen) == pytest.approx(3.0)
    missed = Objective.of({"metric": "operations_to_target", "target": 85, "method": "b"})
    assert missed.value(seen) == math.inf
    assert missed.shown(math.inf) == "missed"


# --- one worker ---


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
    assert again.best(1)[0].value == max(cell.value for cell in again.cells)
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


def test_ctrl_c_puts_the_cell_back_and_the_next_worker_goes_on_with_it(tmp_path):
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


def test_a_damaged_cell_directory_is_begun_anew(tmp_path):
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


def test_a_storage_that_is_no_database_is_refused_without_its_password(tmp_path):
    with pytest.raises(ValueError, match="must be the URL of a database"):
        sweep(spec_of(), tmp_path / "a", storage="somewhere")
    with pytest.raises(OSError, match=r"sqlite:////nowhere.*cannot be used"):
        sweep(spec_of(), tmp_path / "b", storage="sqlite:////nowhere/at/all.db")


# --- a search ---


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


def test_tpe_learns_from_cells_that_missed_the_target_too(tmp_path):
    spec = spec_of(
        {"lr": {"low": 0.001, "high": 1.0}},
        search="tpe",
        trials=30,
        objective={"metric": "seconds_to_target"},
    )
    queue = Queue(spec, None)
    study = open_study(spec, tmp_path, None, queue.fill)
    chosen = []
    while claim := queue.claim(study, "here"):
        lr = claim.cell.config.lr
        queue.finish(study, claim.trial, abs(lr - 0.3) if lr < 0.5 else math.inf, {})
        chosen.append(lr)
    assert len(chosen) == 30
    assert sum(lr < 0.5 for lr in chosen[15:]) > 10


# --- many workers ---


def worker(spec, out, storage, lock, start, answers, settings):
    os.environ[LOCK_VARIABLE] = str(lock)
    start.wait()
    answers.put(sweep(SweepSpec.of(spec), out, storage, **settings).taken)


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


def together(processes, target, arguments):
    """Let processes run to their end, and return their answers."""
    start, answers = processes.Barrier(len(arguments)), processes.Queue()
    started = [processes.Process(target=target, args=(*a, start, answers)) for a in arguments]
    for process in started:
        process.start()
    found = [answers.get(timeout=120) for _ in started]
    for process in started:
        process.join()
        assert process.exitcode == 0
    return found


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
    start, answers = processes.Barrier(3), processes.Queue()
    workers = [
        processes.Process(
            target=worker,
            args=(spec.to_json(), out, storage, tmp_path / f"{k}.lock", start, answers, {}),
        )
        for k in range(3)
    ]
    for each in workers:
        each.start()
    assert sum(answers.get(timeout=120) for _ in workers) == 4
    for each in workers:
        each.join()
    summary = sweep(spec, out, storage)
    assert (summary.done, summary.taken) == (4, 0)
    assert [cell.attempts for cell in summary.cells] == [1] * 4
    study = open_study(spec, out, storage, lambda study: None)
    states = [trial.state.name for trial in study.trials if "cell" in trial.user_attrs]
    assert states == ["COMPLETE"] * 4


@pytest.mark.parametrize("place", ["same machine", "other machine"])
def test_a_killed_worker_loses_nothing_and_its_cell_is_gone_on_with(processes, tmp_path, place):
    spec, out = spec_of(base={"epochs": 15, "batch_size": 16}), tmp_path / "sweep"
    start, answers = processes.Barrier(1), processes.Queue()
    lock = Path(os.environ[LOCK_VARIABLE]) if place == "same machine" else tmp_path / "other.lock"
    arguments = (spec.to_json(), out, None, lock, start, answers, {"grace": 1.0})
    victim = processes.Process(target=worker, args=arguments)
    victim.start()
    run = RunDirectory(out / "cells" / spec.cells()[0].name)
    while len(run.evaluations()) < 3:
        assert victim.is_alive()
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    before = run.evaluations()
    events = []
    grace = 1000.0 if place == "same machine" else 1.0
    summary = sweep(spec, out, on_event=events.append, grace=grace)
    assert (summary.done, summary.cells[0].attempts) == (1, 2)
    assert [event.kind for event in events if event.kind == "lost"] == ["lost"]
    after = run.evaluations()
    assert after[: len(before) - 1] == before[:-1]
    assert [round(each.epoch) for each in after] == list(range(16))


def test_a_worker_whose_cell_was_taken_stops(tmp_path):
    spec = spec_of()
    queue = Queue(spec, spec.cells())
    study = open_study(spec, tmp_path, None, queue.fill)
    claim = queue.claim(study, "asleep")
    with Heartbeat(claim.beat, grace=0.04) as heart:
        assert queue.rescue(study, "asleep") == [claim.cell.name]
        time.sleep(0.1)
        with pytest.raises(LeaseLostError):
            heart.check()
    assert not queue.finish(study, claim.trial, 1.0, {})
    queue.fill(study)
    assert [each.state for each in queue.standings(study)] == ["waiting"]


def test_a_worker_that_cannot_reach_the_study_for_long_stops(tmp_path):
    def unreachable(count):
        if count > 1:
            raise ConnectionError

    with Heartbeat(unreachable, grace=0.04) as heart:
        time.sleep(0.1)
        with pytest.raises(LeaseLostError):
            heart.check()


def test_a_cell_that_keeps_killing_its_workers_is_given_up(tmp_path):
    spec = spec_of()
    queue = Queue(spec, spec.cells())
    study = open_study(spec, tmp_path, None, queue.fill)
    deaths = 0
    while queue.claim(study, "here"):
        deaths += len(queue.rescue(study, "here"))
        queue.fill(study)
    assert deaths == 6
    assert [each.state for each in queue.standings(study)] == ["failed"]


def test_optuna_shows_the_axes_as_parameters(tmp_path):
    spec = spec_of({"lr": [0.1], "channels": [[8], [4, 4]]})
    study = open_study(spec, tmp_path, None, Queue(spec, spec.cells()).fill)
    assert isinstance(study, optuna.Study)
    assert [trial.params for trial in study.trials] == [
        {"lr": 0.1, "channels": "[8]"},
        {"lr": 0.1, "channels": "[4, 4]"},
    ]
