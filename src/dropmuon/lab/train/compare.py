"""Training with several methods side by side, recording when each reaches which accuracy.

Methods take turns in short slices within one process, so that whatever else the machine does
affects all of them alike. Every evaluation is on disk as soon as it is made.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.models import item_of
from dropmuon.lab.run import RunDirectory, check_same
from dropmuon.lab.train.equal_terms import Budget, check_fits, initial_model, measured_budget
from dropmuon.lab.train.machine import environment, keep_freed_memory
from dropmuon.lab.train.meter import Counts
from dropmuon.lab.train.transfer import (
    Weights,
    keep_final,
    keep_initial,
    read_saved,
    starting_weights,
)
from dropmuon.lab.train.trial import Trial
from dropmuon.lab.train.tune import check_tunable, is_published, tuned, with_tuned
from dropmuon.lab.watch import Watcher
from dropmuon.output import write_bytes, write_text
from dropmuon.planning import Plan, plan

__all__ = ["compare"]

_SLICES = 8
"""Turns that each method gets between two evaluations."""

_PLANNING_BATCHES = 8

_DAMAGE = (EOFError, RuntimeError, ValueError, KeyError, TypeError, OverflowError)
"""What a state that is not what was saved may raise."""


def compare(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    tuning: Path | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunDirectory:
    """Run a comparison into a directory; an interrupted one can be resumed from there.

    `tuning` is the directory of tuned settings, which comparisons may share, or a tuned run or race
    to take them from; by default it is inside `out`. `known` has settings by method that tuning
    tries second, after the given ones.

    Raises KeyboardInterrupt on Ctrl-C, with all evaluations so far and the state of every trial at
    its last evaluation on disk. Arguments are checked before anything is written.
    """
    watcher, run = watcher or Watcher(), RunDirectory(out)
    _check_usable(run, config, resume=resume)
    watcher.prepare(f"loading {config.dataset}")
    shows = sys.stderr.isatty()
    found = data.load(
        config.dataset,
        device=config.device,
        context=config.context,
        classes=config.classes,
        show_progress=shows,
    )
    _check_batches(config, found)
    start = starting_weights(config, found, run, resume=resume)
    counts: dict[str, Counts] = {name: {} for name in config.methods}
    with _threads(config.threads):
        budget = measured_budget(config, found, counts[config.baseline])
        for name in config.methods:
            check_fits(config, found, config.method(name), budget, counts[name])
        if config.tune:
            check_tunable(config, found)
        out.mkdir(parents=True, exist_ok=True)
        with run.lock() as is_alone, run.writing():
            if not is_alone:
                raise ValueError(f"out {out} is in use by another process; wait for it, or end it")
            _check_usable(run, config, resume=resume)
            run.clear_drafts()
            run.check_readable()
            _begin(run, config, start)
            budget = _kept(run, budget)
            planned = _planned_settings(config, found, run, watcher, start)
            if config.tune:
                if not (out / "tuned.json").exists():
                    _check_untrained(run)
                    own, is_source = out / "tuning", tuning is not None and is_published(tuning)
                    cache, source = (own, tuning) if is_source else (tuning or own, None)
                    report = tuned(config, found, cache, watcher, planned, start, known, source)
                    run.write("tuned.json", report)
                config = with_tuned(config, run.tuned)
            _train(_Comparison(run, config, found, budget, planned, start, counts, watcher))
    return run


@dataclass(frozen=True)
class _Comparison:
    """What the steps of a comparison work on."""

    run: RunDirectory
    config: Config
    found: data.Data
    budget: Budget
    planned: Mapping[str, Any] | None
    start: Weights | None
    counts: dict[str, Counts]
    watcher: Watcher


def _check_usable(run: RunDirectory, config: Config, *, resume: bool) -> None:
    """Raise ValueError if this comparison may not write into the directory."""
    if resume:
        check_same(Config.of(run.config).to_json(), config.to_json())
    else:
        run.check_usable(config.to_json(), resume=False)


def _check_untrained(run: RunDirectory) -> None:
    """Raise ValueError if a run has begun to train, with settings that are lost."""
    if (run.path / "methods.json").exists():
        raise ValueError(
            f"{run.path} has no tuned.json, with the settings that it trains with; restore it, or "
            "start the run again"
        )


def _check_batches(config: Config, found: data.Data) -> None:
    for name in config.methods:
        size = config.method(name).batch_size(config.batch_size)
        if size > len(found.train):
            raise ValueError(
                f"batch_size must be at most the {len(found.train)} training examples of "
                f"{config.dataset}, got {size}; lower it"
            )


def _kept(run: RunDirectory, budget: Budget) -> Budget:
    """Return the budget that the run began with: seconds are measured once."""
    if budget.unit != "seconds":
        return budget
    path = run.path / "budget.json"
    if not path.exists():
        run.write("budget.json", budget.to_json())
    try:
        return Budget(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}; start the run again") from error


def _begin(run: RunDirectory, config: Config, start: Weights | None) -> None:
    """Set up the process for steady times, and record once what is run and where."""
    kept = keep_freed_memory()
    run.checkpoints.mkdir(exist_ok=True)
    if not (run.path / "config.json").exists():
        keep_initial(run, start)
        run.write("environment.json", environment(config.device, memory_kept=kept))
        run.write("config.json", config.to_json())


def _train(c: _Comparison) -> None:
    """Train every seed to its end, from the current state of the run."""
    c.watcher.begin(c.config, c.budget.steps)
    try:
        for evaluation in c.run.evaluations():
            c.watcher.evaluated(evaluation)
        for seed in _unfinished_seeds(c):
            initial = initial_model(c.config, c.found, seed, c.start)
            trials = [
                Trial(
                    c.config,
                    c.config.method(name),
                    seed,
                    c.found,
                    initial,
                    c.budget,
                    c.planned,
                    c.counts[name],
                )
                for name in c.config.methods
            ]
            _train_seed(c, trials)
    finally:
        c.watcher.end()


def _planned_settings(
    config: Config,
    found: data.Data,
    run: RunDirectory,
    watcher: Watcher,
    start: Weights | None,
) -> Mapping[str, Any] | None:
    """Return the planner's settings for this model and data, planned once per comparison.

    None if no method needs one.
    """
    if not config.needs_plan:
        return None
    path = run.path / "plan.json"
    if not path.exists():
        watcher.prepare(f"planning for about {config.plan_budget:g} s")
        size = min(config.batch_size, len(found.train) // _PLANNING_BATCHES)
        places = torch.arange(size * _PLANNING_BATCHES, device=config.device).split(size)
        made = plan(
            initial_model(config, found, config.seeds[0], start),
            _loss,
            [found.train.batch(each) for each in places],
            budget=config.plan_budget,
            lr=config.lr,
            momentum=config.momentum,
            policy=config.policy,
            by=item_of,
        )
        made.save(path)
        write_text(run.path / "plan.txt", f"{made}\n")
    return Plan.load(path).settings


def _unfinished_seeds(c: _Comparison) -> list[int]:
    """Return the seeds on which some method was not yet evaluated at its end."""
    ended = {
        (each.method, each.seed)
        for each in c.run.evaluations()
        if each.is_final or (each.progress is None and each.step == c.budget.steps)
    }
    wanted = c.config.methods
    return [seed for seed in c.config.seeds if not ended >= {(m, seed) for m in wanted}]


def _train_seed(c: _Comparison, trials: Sequence[Trial]) -> None:
    """Take all methods through one seed, from evaluation to evaluation."""
    if not (c.run.path / "methods.json").exists():
        c.run.write("methods.json", {trial.method.name: trial.description() for trial in trials})
    _restore(c.run, trials)
    for trial in trials:
        trial.warm_up()
    count = max(1, round(c.config.epochs * c.config.evaluations_per_epoch))
    for turn in range(count + 1):
        stop = turn / count
        behind = [trial for trial in trials if trial.evaluated_at < stop]
        _advance(_rotated(behind, turn), max(turn - 1, 0) / count, stop, c.watcher)
        for trial in behind:
            _evaluate(c, trial)
    for trial in trials:
        _checkpoint(c.run, trial).unlink(missing_ok=True)


def _rotated(trials: Sequence[Trial], turn: int) -> list[Trial]:
    """Return trials in the order of this turn: rotated, so that none always follows the same."""
    start = turn % max(1, len(trials))
    return [*trials[start:], *trials[:start]]


def _advance(trials: Sequence[Trial], start: float, stop: float, watcher: Watcher) -> None:
    """Let trials take turns from one share of the budget to another."""
    for part in range(1, _SLICES + 1):
        until = stop if part == _SLICES else start + (stop - start) * part / _SLICES
        for trial in trials:
            before = trial.step
            trial.advance(until)
            if trial.step > before:
                name, seed = trial.method.name, trial.seed
                watcher.progressed(name, seed, trial.progress)
                watcher.advance(name, seed, trial.step, trial.seconds)


def _evaluate(c: _Comparison, trial: Trial) -> None:
    """Evaluate a trial, record the evaluation, then save the state to resume from."""
    evaluation = trial.evaluate()
    first = (c.config.baseline, c.config.seeds[0])
    if evaluation.is_final and (trial.method.name, trial.seed) == first:
        keep_final(c.run, trial.model)
    c.run.append(evaluation)
    state = io.BytesIO()
    torch.save(trial.state(), state)
    write_bytes(_checkpoint(c.run, trial), state.getvalue())
    c.watcher.evaluated(evaluation)


def _restore(run: RunDirectory, trials: Sequence[Trial]) -> None:
    """Restore trials from their saved states, and drop evaluations that came after those."""
    known = {(each.method, each.seed, each.step) for each in run.evaluations()}
    for trial in trials:
        path = _checkpoint(run, trial)
        if path.exists():
            _restore_one(trial, path)
            if (trial.method.name, trial.seed, trial.step) not in known:
                raise ValueError(
                    f"{path} is at step {trial.step}, but evaluations.jsonl has no line of "
                    f"{trial.method.name} there: it is older, or damaged; restore it, or remove "
                    "the checkpoint, and that trial starts again"
                )
    reached = {t.method.name: t.step if t.evaluated_at >= 0 else -1 for t in trials}
    run.rewrite(
        each
        for each in run.evaluations()
        if each.seed != trials[0].seed or each.step <= reached[each.method]
    )


def _checkpoint(run: RunDirectory, trial: Trial) -> Path:
    return run.checkpoints / f"{trial.key}.pt"


def _restore_one(trial: Trial, path: Path) -> None:
    """Restore a trial from its file, whose checksums torch does not verify by itself."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} has another checksum")
        trial.restore(read_saved(path))
    except (*_DAMAGE, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged and cannot be resumed from; remove it, and that trial starts again"
        ) from error


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
