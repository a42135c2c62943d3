"""Training with several methods side by side, recording when each reaches which accuracy.

Methods take turns in short slices within one process, so that whatever else the machine does
affects all of them alike. Every evaluation is on disk as soon as it is made.
"""

from __future__ import annotations

import errno
import io
import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dropmuon.files import write_bytes
from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.methods import Method
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train import descriptions
from dropmuon.lab.train.meter import Counts, keep_freed_memory
from dropmuon.lab.train.planned import planned_sampler
from dropmuon.lab.train.trial import Trial, initial_model, steps_per_epoch
from dropmuon.lab.watch import Watcher
from dropmuon.samplers import Full, Sampler

__all__ = ["compare"]

_SLICES = 8
"""Turns that each method gets between two evaluations."""


def compare(
    config: Config, out: Path, *, resume: bool = False, watcher: Watcher | None = None
) -> RunDirectory:
    """Run a comparison into a directory; an interrupted one can be resumed from there.

    Raises KeyboardInterrupt on Ctrl-C, with all evaluations so far and the state of every trial at
    its last evaluation on disk. Arguments are checked before anything is written.
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
    trials = _Trials(config, found, _unfinished_seeds(run, config, found))
    out.mkdir(parents=True, exist_ok=True)
    with run.lock() as is_alone, _threads(config.threads), _disk_space(out):
        if not is_alone:
            raise ValueError(f"out {out} is in use by another process; wait for it, or end it")
        _check_place(run, config, resume)
        _begin(run, config)
        _train(run, config, found, trials, watcher)
    return run


class _Trials:
    """A maker of the trials of each seed, one per method.

    Those of the first seed are made at once, so that what an optimizer rejects is rejected before
    anything is written. A planned method is only tried out then, since its sampler is not known.
    """

    def __init__(self, config: Config, found: data.Data, seeds: Sequence[int]) -> None:
        self._config, self._data = config, found
        self._methods = [config.method(name) for name in config.methods]
        self._counts: dict[str, Counts] = {name: {} for name in config.methods}
        self._ready: dict[tuple[int, str], Trial] = {}
        for seed in seeds[:1]:
            for trial in self.of(seed, Full()):
                if not trial.method.needs_plan:
                    self._ready[seed, trial.method.name] = trial

    def of(self, seed: int, planned: Sampler | None) -> list[Trial]:
        """Return the trials of a seed, in the order of the methods."""
        initial = initial_model(self._config, self._data, seed)
        made = []
        for method in self._methods:
            ready = self._ready.pop((seed, method.name), None)
            made.append(ready or self._make(method, seed, initial, planned))
        return made

    def _make(
        self, method: Method, seed: int, initial: nn.Sequential, planned: Sampler | None
    ) -> Trial:
        counts = self._counts[method.name]
        return Trial(self._config, method, seed, self._data, initial, planned, counts)


def _check_place(run: RunDirectory, config: Config, resume: bool) -> None:
    """Reject a directory that this comparison may not write to."""
    if resume:
        _check_same(run.config, config.to_json())
    elif run.path.exists() and not run.path.is_dir():
        raise ValueError(f"out {run.path} is a file; choose a directory")
    elif run.path.exists() and any(each.name != ".lock" for each in run.path.iterdir()):
        raise ValueError(
            f"out {run.path} exists and is not empty; add --resume to continue it, or choose "
            "another directory"
        )


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuse to resume with other settings than a run began with."""
    plain = json.loads(json.dumps(new))
    for key in sorted(set(old) | set(plain)):
        if old.get(key) != plain.get(key):
            raise ValueError(
                f"{key} must be what the run began with to resume it, {old.get(key)!r}, "
                f"got {plain.get(key)!r}; leave it out, or choose another --out"
            )


def _begin(run: RunDirectory, config: Config) -> None:
    """Set up the process for steady times, and record once what is run and where."""
    kept = keep_freed_memory()
    run.checkpoints.mkdir(exist_ok=True)
    if not (run.path / "config.json").exists():
        run.write("environment.json", descriptions.environment(config.device, memory_kept=kept))
        run.write("config.json", config.to_json())


def _train(
    run: RunDirectory, config: Config, found: data.Data, trials: _Trials, watcher: Watcher
) -> None:
    """Train every seed to its end, from the current state of the run."""
    planned = planned_sampler(config, found, run, watcher)
    watcher.begin(config, config.epochs * steps_per_epoch(config, len(found.train)))
    try:
        for evaluation in run.evaluations():
            watcher.evaluated(evaluation)
        for seed in _unfinished_seeds(run, config, found):
            _train_seed(run, config, trials.of(seed, planned), watcher)
    finally:
        watcher.end()


def _unfinished_seeds(run: RunDirectory, config: Config, found: data.Data) -> list[int]:
    """Return the seeds on which some method was not yet evaluated after its last step."""
    last = config.epochs * steps_per_epoch(config, len(found.train))
    ended = {(each.method, each.seed) for each in run.evaluations() if each.step == last}
    return [seed for seed in config.seeds if not ended >= {(m, seed) for m in config.methods}]


def _train_seed(
    run: RunDirectory, config: Config, trials: Sequence[Trial], watcher: Watcher
) -> None:
    """Take all methods through one seed, from evaluation to evaluation."""
    if not (run.path / "methods.json").exists():
        run.write("methods.json", descriptions.methods(trials))
    _restore(run, trials)
    for trial in trials:
        trial.warm_up()
    for turn, stop in enumerate(_evaluation_steps(config, trials[0].total_steps)):
        behind = [trial for trial in trials if trial.evaluated_at < stop]
        _advance(_rotated(behind, turn), stop, watcher)
        for trial in behind:
            _evaluate(run, trial, watcher)
    for trial in trials:
        _checkpoint(run, trial).unlink(missing_ok=True)


def _evaluation_steps(config: Config, total_steps: int) -> list[int]:
    """Return the steps after which trials are evaluated: the start, and parts of every epoch."""
    count = config.epochs * config.evaluations_per_epoch
    return sorted({round(total_steps * k / count) for k in range(count + 1)})


def _rotated(trials: Sequence[Trial], turn: int) -> list[Trial]:
    """Return trials in the order of this turn: rotated, so that none always follows the same."""
    start = turn % max(1, len(trials))
    return [*trials[start:], *trials[:start]]


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
    """Evaluate a trial, record the evaluation, then save the state to resume from."""
    evaluation = trial.evaluate()
    run.append(evaluation)
    state = io.BytesIO()
    torch.save(trial.state(), state)
    write_bytes(_checkpoint(run, trial), state.getvalue())
    watcher.evaluated(evaluation)


def _restore(run: RunDirectory, trials: Sequence[Trial]) -> None:
    """Restore trials from their saved states, and drop evaluations that came after those."""
    for trial in trials:
        path = _checkpoint(run, trial)
        if path.exists():
            trial.restore(_loaded(path))
    reached = {trial.method.name: trial.evaluated_at for trial in trials}
    run.rewrite(
        each
        for each in run.evaluations()
        if each.seed != trials[0].seed or each.step <= reached[each.method]
    )


def _checkpoint(run: RunDirectory, trial: Trial) -> Path:
    return run.checkpoints / f"{trial.key}.pt"


def _loaded(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{path} is damaged and cannot be resumed from; remove it, and that trial starts again"
        ) from error
    return state


@contextmanager
def _disk_space(out: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise
        raise OSError(
            error.errno,
            f"{error.strerror} for the run in {out}; free some space, and continue with --resume",
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
