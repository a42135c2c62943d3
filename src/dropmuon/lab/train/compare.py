"""Training with several methods side by side, recording when each reaches which accuracy.

Methods take turns in short slices within one process, so that whatever else the machine does
affects all of them alike. Every evaluation is on disk as soon as it is made.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.files import write_bytes, write_text
from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.models import item_of
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.meter import Counts, environment, keep_freed_memory
from dropmuon.lab.train.trial import Trial, initial_model, shared_settings, total_steps
from dropmuon.lab.watch import Watcher
from dropmuon.planning import Plan, plan
from dropmuon.samplers import Full, Sampler

__all__ = ["compare"]

_SLICES = 8
"""Turns that each method gets between two evaluations."""

_PLANNING_BATCHES = 8


def compare(
    config: Config, out: Path, *, resume: bool = False, watcher: Watcher | None = None
) -> RunDirectory:
    """Run a comparison into a directory; an interrupted one can be resumed from there.

    Raises KeyboardInterrupt on Ctrl-C, with all evaluations so far and the state of every trial at
    its last evaluation on disk. Arguments are checked before anything is written.
    """
    watcher, run = watcher or Watcher(), RunDirectory(out)
    run.check_usable(config.to_json(), resume=resume)
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
    _check_optimizers(config, found)
    out.mkdir(parents=True, exist_ok=True)
    with run.lock() as is_alone, _threads(config.threads), run.writing():
        if not is_alone:
            raise ValueError(f"out {out} is in use by another process; wait for it, or end it")
        run.check_usable(config.to_json(), resume=resume)
        _begin(run, config)
        _train(run, config, found, watcher)
    return run


def _check_optimizers(config: Config, found: data.Data) -> None:
    """Raise what an optimizer rejects before anything is written; any sampler stands for a plan."""
    seed = config.seeds[0]
    model, shared = initial_model(config, found, seed), shared_settings(config, found, seed)
    for name in config.methods:
        config.method(name).optimizer(model, shared, Full())


def _begin(run: RunDirectory, config: Config) -> None:
    """Set up the process for steady times, and record once what is run and where."""
    kept = keep_freed_memory()
    run.checkpoints.mkdir(exist_ok=True)
    if not (run.path / "config.json").exists():
        run.write("environment.json", environment(config.device, memory_kept=kept))
        run.write("config.json", config.to_json())


def _train(run: RunDirectory, config: Config, found: data.Data, watcher: Watcher) -> None:
    """Train every seed to its end, from the current state of the run."""
    planned = _planned_sampler(config, found, run, watcher)
    counts: dict[str, Counts] = {name: {} for name in config.methods}
    watcher.begin(config, total_steps(config, found))
    try:
        for evaluation in run.evaluations():
            watcher.evaluated(evaluation)
        for seed in _unfinished_seeds(run, config, found):
            initial = initial_model(config, found, seed)
            trials = [
                Trial(config, config.method(name), seed, found, initial, planned, counts[name])
                for name in config.methods
            ]
            _train_seed(run, config, trials, watcher)
    finally:
        watcher.end()


def _planned_sampler(
    config: Config, found: data.Data, run: RunDirectory, watcher: Watcher
) -> Sampler | None:
    """Return the planner's sampler for this model and data, planned once per comparison.

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
            initial_model(config, found, config.seeds[0]),
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
    return Plan.load(path).sampler


def _unfinished_seeds(run: RunDirectory, config: Config, found: data.Data) -> list[int]:
    """Return the seeds on which some method was not yet evaluated after its last step."""
    last = total_steps(config, found)
    ended = {(each.method, each.seed) for each in run.evaluations() if each.step == last}
    return [seed for seed in config.seeds if not ended >= {(m, seed) for m in config.methods}]


def _train_seed(
    run: RunDirectory, config: Config, trials: Sequence[Trial], watcher: Watcher
) -> None:
    """Take all methods through one seed, from evaluation to evaluation."""
    if not (run.path / "methods.json").exists():
        run.write("methods.json", {trial.method.name: trial.description() for trial in trials})
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
