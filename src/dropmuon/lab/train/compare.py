"""Train with several methods side by side, and see who reaches which accuracy when.

Methods take turns in short slices within one process, so that whatever else the machine does hits
all of them. Everything that is found is on disk as soon as it is found.
"""

from __future__ import annotations

import errno
import io
import json
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dropmuon.files import write_bytes
from dropmuon.lab import data, environment
from dropmuon.lab.config import Config
from dropmuon.lab.locking import alone
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.describing import describe
from dropmuon.lab.train.memory import keep_freed_memory
from dropmuon.lab.train.meter import Counts
from dropmuon.lab.train.planned import planned_sampler
from dropmuon.lab.train.trial import Trial, initial_model, steps_per_epoch
from dropmuon.lab.watch.watcher import Watcher
from dropmuon.samplers import Full, Sampler

__all__ = ["compare"]

_SLICES = 8
"""Turns that each method gets between two evaluations."""


def compare(
    config: Config, out: Path, *, resume: bool = False, watcher: Watcher | None = None
) -> RunDirectory:
    """Run a comparison into a directory; interrupted, it can be resumed from there.

    Raises KeyboardInterrupt on Ctrl-C, with all evaluations so far and the state of every trial at
    its last evaluation on disk. Nothing is written before all that can be refused was refused.
    """
    watcher, run = watcher or Watcher(), RunDirectory(out)
    _check_place(run, config, resume)
    watcher.prepare(f"loading {config.dataset}")
    shows = sys.stderr.isatty()
    found = data.load(
        config.dataset, device=config.device, context=config.context, show_progress=shows
    )
    if config.batch_size > len(found.train):
        raise ValueError(
            f"batch_size must be at most the {len(found.train)} training examples of "
            f"{config.dataset}, got {config.batch_size}; lower it"
        )
    _check_methods(config, found)
    out.mkdir(parents=True, exist_ok=True)
    with alone(out) as is_alone, _threads(config.threads), _room(out):
        if not is_alone:
            raise ValueError(f"out {out} is in use by another process; wait for it, or end it")
        _check_place(run, config, resume)
        _begin(run, config)
        _train(run, config, found, watcher)
    return run


def _check_place(run: RunDirectory, config: Config, resume: bool) -> None:
    """Refuse a directory that is not this comparison's to write."""
    if resume:
        _check_same(run.config, config.to_json())
    elif run.path.exists() and not run.path.is_dir():
        raise ValueError(f"out {run.path} is a file; choose a directory")
    elif run.path.exists() and any(each.name != ".lock" for each in run.path.iterdir()):
        raise ValueError(
            f"out {run.path} exists and is not empty; add --resume to go on with it, or choose "
            "another"
        )


def _begin(run: RunDirectory, config: Config) -> None:
    """Set the process up for even times, and write what is run, and where, once."""
    kept = keep_freed_memory()
    run.checkpoints.mkdir(exist_ok=True)
    if not (run.path / "config.json").exists():
        run.write("environment.json", environment.describe(config.device, memory_kept=kept))
        run.write("config.json", config.to_json())


def _train(run: RunDirectory, config: Config, found: data.Data, watcher: Watcher) -> None:
    """Take every seed to its end, from wherever the run is."""
    planned = planned_sampler(config, found, run, watcher)
    known: dict[str, Counts] = {name: {} for name in config.methods}
    watcher.begin(config, config.epochs * steps_per_epoch(config, len(found.train)))
    try:
        for evaluation in run.evaluations():
            watcher.evaluated(evaluation)
        for seed in config.seeds:
            _run_seed(config, found, run, seed, planned, known, watcher)
    finally:
        watcher.end()


def _check_methods(config: Config, found: data.Data) -> None:
    """Make every optimizer once, so that what it refuses is refused before anything is written."""
    initial = initial_model(config, found, config.seeds[0])
    for name in config.methods:
        Trial(config, config.method(name), config.seeds[0], found, initial, planned=Full())


def _run_seed(
    config: Config,
    found: data.Data,
    run: RunDirectory,
    seed: int,
    planned: Sampler | None,
    known: Mapping[str, Counts],
    watcher: Watcher,
) -> None:
    """Take all methods through one seed, from evaluation to evaluation."""
    if _is_over(run, config, seed, config.epochs * steps_per_epoch(config, len(found.train))):
        return
    initial = initial_model(config, found, seed)
    trials = [
        Trial(config, config.method(name), seed, found, initial, planned, known[name])
        for name in config.methods
    ]
    describe(run, trials)
    _restore(run, trials)
    for trial in trials:
        trial.warm_up()
    for turn, stop in enumerate(_evaluation_steps(config, trials[0])):
        behind = [trial for trial in trials if trial.looked_at < stop]
        _advance(_rotated(behind, turn), stop, watcher)
        for trial in behind:
            _evaluate(run, trial, watcher)
    for trial in trials:
        _checkpoint(run, trial).unlink(missing_ok=True)


def _is_over(run: RunDirectory, config: Config, seed: int, total_steps: int) -> bool:
    """Whether every method was looked at after its last step on this seed."""
    found = {e.method for e in run.evaluations() if e.seed == seed and e.step == total_steps}
    return found >= set(config.methods)


def _advance(trials: Sequence[Trial], stop: int, watcher: Watcher) -> None:
    """Let trials take turns until each has reached the step."""
    first = min((trial.step for trial in trials), default=stop)
    size = max(1, -(-(stop - first) // _SLICES))
    while any(trial.step < stop for trial in trials):
        for trial in trials:
            if trial.step < stop:
                trial.advance(min(size, stop - trial.step))
                watcher.advance(trial.method.name, trial.seed, trial.step, trial.seconds)


def _evaluate(run: RunDirectory, trial: Trial, watcher: Watcher) -> None:
    """Look at a trial and keep what was seen, then what going on from here needs."""
    evaluation = trial.evaluate()
    run.append(evaluation)
    state = io.BytesIO()
    torch.save(trial.state(), state)
    write_bytes(_checkpoint(run, trial), state.getvalue())
    watcher.evaluated(evaluation)


def _restore(run: RunDirectory, trials: Sequence[Trial]) -> None:
    """Put trials where they were last kept, and forget evaluations that came after."""
    for trial in trials:
        path = _checkpoint(run, trial)
        if path.exists():
            trial.restore(_loaded(path))
    reached = {trial.method.name: trial.looked_at for trial in trials}
    run.rewrite(
        each
        for each in run.evaluations()
        if each.seed != trials[0].seed or each.step <= reached[each.method]
    )


def _loaded(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{path} is damaged and cannot be gone on from; remove it, and that trial starts anew"
        ) from error
    return state


def _evaluation_steps(config: Config, trial: Trial) -> list[int]:
    """The steps after which accuracies are taken: the start, and parts of every epoch."""
    count = config.epochs * config.evaluations_per_epoch
    return sorted({round(trial.total_steps * k / count) for k in range(count + 1)})


def _rotated(trials: Sequence[Trial], turn: int) -> list[Trial]:
    """Another one first in each turn: none has always the same neighbour in time."""
    start = turn % max(1, len(trials))
    return [*trials[start:], *trials[:start]]


def _checkpoint(run: RunDirectory, trial: Trial) -> Path:
    return run.checkpoints / f"{trial.key}.pt"


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse to go on with other settings than a run began with."""
    plain = json.loads(json.dumps(new))
    for key in sorted(set(old) | set(plain)):
        if old.get(key) != plain.get(key):
            raise ValueError(
                f"{key} must be what the run began with to resume it, {old.get(key)!r}, "
                f"got {plain.get(key)!r}; leave it out, or choose another --out"
            )


@contextmanager
def _room(out: Path) -> Iterator[None]:
    """Say what to do where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise
        raise OSError(
            error.errno,
            f"{error.strerror} for the run in {out}; make room, and go on with --resume",
        ) from error


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
