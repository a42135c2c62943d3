"""Train with several methods side by side, and see who reaches which accuracy when.

Methods take turns in short slices within one process, so that whatever else the machine does hits
all of them. Everything that is found is on disk as soon as it is found.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.lab import data, environment
from dropmuon.lab.config import Config
from dropmuon.lab.files import write_bytes, write_text
from dropmuon.lab.locking import alone
from dropmuon.lab.models import item_of
from dropmuon.lab.records import RunDirectory
from dropmuon.lab.trial import Trial, initial_model, steps_per_epoch
from dropmuon.lab.watching import Watcher
from dropmuon.optimizer import DropMuon
from dropmuon.planning import Plan, plan
from dropmuon.samplers import Full, Sampler

__all__ = ["compare", "prepare"]

_SLICES = 8
"""Turns that each method gets between two evaluations."""

_PROGRESSES = [step / 20 for step in range(21)]
_PLANNING_BATCHES = 8


def compare(
    config: Config, out: Path, *, resume: bool = False, watcher: Watcher | None = None
) -> RunDirectory:
    """Run a comparison into a directory; interrupted, it can be resumed from there.

    Raises KeyboardInterrupt on Ctrl-C, with all evaluations so far and the state of every trial at
    its last evaluation on disk.
    """
    watcher = watcher or Watcher()
    found = data.load(config.dataset, device=config.device, context=config.context)
    if config.batch_size > len(found.train):
        raise ValueError(
            f"batch_size must be at most the {len(found.train)} training examples of "
            f"{config.dataset}, got {config.batch_size}; lower it"
        )
    _check_methods(config, found)
    run = prepare(config, out, resume=resume)
    with alone(run.path) as is_alone, _threads(config.threads):
        if not is_alone:
            raise ValueError(f"out {out} is in use by another process; wait for it, or end it")
        planned = _planned(config, found, run)
        watcher.begin(config, config.epochs * steps_per_epoch(config, len(found.train)))
        for evaluation in run.evaluations():
            watcher.evaluated(evaluation)
        try:
            for seed in config.seeds:
                _run_seed(config, found, run, seed, planned, watcher)
        finally:
            watcher.end()
    return run


def prepare(config: Config, out: Path, *, resume: bool = False) -> RunDirectory:
    """Make the run's directory, or check that the one to resume is of this very comparison."""
    run = RunDirectory(out)
    if resume:
        _check_same(run.config, config.to_json())
        return run
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"out {out} exists and is not empty; add --resume to go on with it, or choose another"
        )
    out.mkdir(parents=True, exist_ok=True)
    run.checkpoints.mkdir(exist_ok=True)
    run.write("environment.json", environment.describe(config.device))
    run.write("config.json", config.to_json())
    return run


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
    watcher: Watcher,
) -> None:
    """Take all methods through one seed, from evaluation to evaluation."""
    if _is_over(run, config, seed, config.epochs * steps_per_epoch(config, len(found.train))):
        return
    initial = initial_model(config, found, seed)
    trials = [
        Trial(config, config.method(name), seed, found, initial, planned) for name in config.methods
    ]
    _describe(run, trials)
    _restore(run, trials)
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
            trial.restore(torch.load(path, map_location="cpu", weights_only=True))
    reached = {trial.method.name: trial.looked_at for trial in trials}
    run.rewrite(
        each
        for each in run.evaluations()
        if each.seed != trials[0].seed or each.step <= reached[each.method]
    )


def _evaluation_steps(config: Config, trial: Trial) -> list[int]:
    """The steps after which accuracies are taken: the start, and parts of every epoch."""
    count = config.epochs * config.evaluations_per_epoch
    return sorted({round(trial.total_steps * k / count) for k in range(count + 1)})


def _rotated(trials: Sequence[Trial], turn: int) -> list[Trial]:
    """Another one first in each turn: none has always the same neighbour in time."""
    start = turn % max(1, len(trials))
    return [*trials[start:], *trials[:start]]


def _checkpoint(run: RunDirectory, trial: Trial) -> Path:
    name = trial.method.name.replace(":", "-").replace("/", "-")
    return run.checkpoints / f"{name}-seed{trial.seed}.pt"


def _describe(run: RunDirectory, trials: Sequence[Trial]) -> None:
    """Write layers and sampling distributions, once."""
    if (run.path / "methods.json").exists():
        return
    run.write("methods.json", {trial.method.name: _description(trial) for trial in trials})


def _description(trial: Trial) -> dict[str, Any]:
    optimizer = trial.optimizer
    if not isinstance(optimizer, DropMuon):
        settings = {k: v for k, v in optimizer.defaults.items() if k in {"lr", "momentum", "betas"}}
        text = f"{type(optimizer).__name__}({settings})"
        return {
            "layers": [],
            "optimizer": text,
            "sampler": None,
            "progress": [],
            "cutoff": [],
            "moves": [],
        }
    b = len(optimizer.layers)
    marginals = [optimizer.sampler.marginals(b, progress) for progress in _PROGRESSES]
    return {
        "layers": list(optimizer.layers),
        "optimizer": str(optimizer),
        "sampler": repr(optimizer.sampler),
        "progress": _PROGRESSES,
        "cutoff": [np.diff(F, prepend=0.0).clip(0.0).tolist() for F, _ in marginals],
        "moves": [Q.tolist() for _, Q in marginals],
    }


def _planned(config: Config, found: data.Data, run: RunDirectory) -> Sampler | None:
    """The planner's own answer for this model and data, made once per comparison."""
    if not any(config.method(name).needs_plan for name in config.methods):
        return None
    path = run.path / "plan.json"
    if not path.exists():
        size = min(config.batch_size, len(found.train) // _PLANNING_BATCHES)
        parts = torch.arange(size * _PLANNING_BATCHES, device=config.device).split(size)
        made = plan(
            initial_model(config, found, config.seeds[0]),
            _loss,
            [found.train.batch(part) for part in parts],
            budget=config.plan_budget,
            lr=config.lr,
            momentum=config.momentum,
            policy=config.policy,
            by=item_of,
        )
        made.save(path)
        write_text(run.path / "plan.txt", f"{made}\n")
    return Plan.load(path).sampler


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


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
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
