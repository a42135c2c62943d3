"""Evaluations as series: two accuracies over two clocks, per trial and averaged over seeds.

Intervals are percentile bootstraps of means over seeds, with the same resamples in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from dropmuon.checks import unknown_name
from dropmuon.lab.run import Evaluation, methods_in

__all__ = [
    "SPLITS",
    "UNITS",
    "Axis",
    "Curve",
    "Split",
    "Unit",
    "accuracy",
    "activity",
    "along",
    "as_far",
    "clock",
    "finished",
    "has_ended",
    "in_order",
    "interval",
    "mean_line",
    "normalized_curves",
    "per_layer",
    "reach",
    "shown_loss",
    "trials",
]

Split = Literal["train", "test"]
Unit = Literal["seconds", "operations"]
Axis = Literal["epoch", "seconds", "operations"]

SPLITS: tuple[Split, ...] = ("train", "test")
UNITS: tuple[Unit, ...] = ("seconds", "operations")

FloatArray = npt.NDArray[np.float64]

_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Curve:
    """Accuracy over normalised time (the baseline ends at 1): mean over seeds, bootstrap band.

    Attributes:
        end: where the method itself ends, mean over seeds. Before 1 the rest of the curve is
            flat; beyond 1 it is cut.
    """

    method: str
    split: Split
    unit: Unit
    seeds: int
    end: float
    time: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def trials(evaluations: Iterable[Evaluation]) -> dict[str, dict[int, list[Evaluation]]]:
    """Return evaluations by method and seed, seeds ascending, each in the order of its steps."""
    given = list(evaluations)
    found: dict[str, dict[int, list[Evaluation]]] = {}
    for method in methods_in(given):
        own = [each for each in given if each.method == method]
        seeds = sorted({each.seed for each in own})
        found[method] = {s: in_order(e for e in own if e.seed == s) for s in seeds}
    return found


def finished(of_seed: Mapping[int, list[Evaluation]]) -> dict[int, list[Evaluation]]:
    """Return the trials of one method that went as far as its furthest."""
    far = max((reach(trial[-1]) for trial in of_seed.values()), default=0.0)
    return {seed: t for seed, t in of_seed.items() if as_far(reach(t[-1]), far)}


def reach(evaluation: Evaluation) -> float:
    """Return how far a trial was: the share of its training, or epochs in runs of format 1."""
    return evaluation.epoch if evaluation.progress is None else evaluation.progress


def shown_loss(evaluation: Evaluation) -> float | None:
    """Return the test loss in the unit that is shown: bits per byte where they are recorded."""
    bits = evaluation.test_bits_per_byte
    return evaluation.test_loss if bits is None else bits


def accuracy(evaluation: Evaluation, split: Split) -> float:
    """Return the accuracy on one of the two sets."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    return evaluation.train_accuracy if split == "train" else evaluation.test_accuracy


def clock(evaluation: Evaluation, unit: Unit) -> float:
    """Return the training time so far, in seconds or in floating-point operations."""
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
    return evaluation.seconds if unit == "seconds" else evaluation.operations


def in_order(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Sort evaluations by step, whatever the order in which they were recorded."""
    return sorted(evaluations, key=lambda each: (each.step, each.seconds))


def has_ended(trial: Sequence[Evaluation], epochs: float) -> bool:
    """Return whether a trial went to its end: by its progress, or else by its epochs.

    At equal cost methods end after different numbers of epochs.
    """
    last = trial[-1]
    return last.is_final if last.progress is not None else as_far(last.epoch, epochs)


def as_far(epoch: float, other: float) -> bool:
    """Return whether training lasted at least as many epochs."""
    return epoch >= other - 1e-6


def along(evaluation: Evaluation, axis: Axis) -> float:
    """Return the training so far, in epochs or in time."""
    return evaluation.epoch if axis == "epoch" else clock(evaluation, axis)


def mean_line(
    of_seed: Mapping[int, list[Evaluation]], axis: Axis, split: Split
) -> list[tuple[float, float]]:
    """Return (time, accuracy) averaged over finished trials.

    At the steps that all of them have; at equal cost these differ, and lines are interpolated at
    the progress of the trial with the fewest evaluations.
    """
    of_trials = list(finished(of_seed).values())
    if not of_trials:
        return []
    if all(each.progress is not None for trial in of_trials for each in trial):
        times = _averaged(of_trials, lambda each: along(each, axis))
        return list(zip(times, _averaged(of_trials, lambda e: accuracy(e, split)), strict=True))
    whole = [{each.step: each for each in trial} for trial in of_trials]
    shared = sorted(set.intersection(*(set(trial) for trial in whole)))
    return [
        (
            sum(along(trial[step], axis) for trial in whole) / len(whole),
            sum(accuracy(trial[step], split) for trial in whole) / len(whole),
        )
        for step in shared
    ]


def activity(of_seed: Mapping[int, list[Evaluation]]) -> tuple[list[float], list[list[float]]]:
    """Return how often each layer moved between evaluations: their epochs, and shares by layer.

    Shares are of the steps between two evaluations, over all seeds; there is one more epoch.
    At equal cost the seeds are at different epochs then, and the first of them gives the epochs.
    """
    first = next(iter(of_seed.values()), [])
    moved: dict[tuple[float, float], list[int]] = {}
    steps: dict[tuple[float, float], int] = {}
    for trial in of_seed.values():
        for index, (before, after) in enumerate(pairwise(trial)):
            if not after.moved or after.step == before.step:
                continue
            place = (before.epoch, after.epoch)
            if after.progress is not None:
                if index + 1 >= len(first):
                    break
                place = (first[index].epoch, first[index + 1].epoch)
            sums = moved.get(place, [0] * len(after.moved))
            moved[place] = [one + other for one, other in zip(sums, after.moved, strict=True)]
            steps[place] = steps.get(place, 0) + after.step - before.step
    places = sorted(moved)
    if not places:
        return [], []
    columns = [[count / steps[place] for count in moved[place]] for place in places]
    edges = [places[0][0], *(end for _, end in places)]
    return edges, [list(row) for row in zip(*columns, strict=True)]


def per_layer(
    of_seed: Mapping[int, list[Evaluation]], name: Literal["shares", "noise"]
) -> list[list[tuple[float, float]]]:
    """Return a line per layer, (epoch, mean over seeds), for shares or noise; empty without them.

    What is not known at an evaluation leaves its point out.
    """
    found: dict[int, dict[float, list[float]]] = {}
    for trial in of_seed.values():
        for evaluation in trial:
            for layer, value in enumerate(getattr(evaluation, name)):
                at = found.setdefault(layer, {})
                if value is not None:
                    at.setdefault(evaluation.epoch, []).append(value)
    return [
        [(epoch, sum(values) / len(values)) for epoch, values in sorted(found[layer].items())]
        for layer in sorted(found)
    ]


def normalized_curves(
    evaluations: Iterable[Evaluation],
    baseline: str,
    split: Split = "train",
    unit: Unit = "seconds",
    grid: int = 101,
) -> list[Curve]:
    """Average the curves of every method, each seed's time divided by the baseline's on that seed.

    This is the paper's normalised curve averaging. A trial takes part where it and the baseline on
    its seed went as far as the baseline ever did.
    """
    if grid < 2:
        raise ValueError(f"grid must be at least 2 points, got {grid}")
    by_method = trials(evaluations)
    whole = finished(by_method.get(baseline, {}))
    ends = {seed: clock(trial[-1], unit) for seed, trial in whole.items()}
    ends = {seed: end for seed, end in ends.items() if end > 0}
    far = max((reach(trial[-1]) for trial in whole.values()), default=0.0)
    found = []
    for method, of_seed in by_method.items():
        taking_part = {s: t for s, t in of_seed.items() if s in ends and as_far(reach(t[-1]), far)}
        if taking_part:
            found.append(_curve(method, taking_part, ends, split, unit, grid))
    return found


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the bootstrap interval of the mean; (None, None) for fewer than two values."""
    if len(values) < 2:
        return None, None
    low, high = _band(np.asarray(values, dtype=np.float64)[:, None])
    return float(low[0]), float(high[0])


def _averaged(
    of_trials: Sequence[Sequence[Evaluation]], value: Callable[[Evaluation], float]
) -> list[float]:
    """Return the mean over trials, interpolated at the progress of the one with the fewest."""
    places = [reach(each) for each in min(of_trials, key=len)]
    rows = [
        np.interp(places, [reach(each) for each in trial], [value(each) for each in trial])
        for trial in of_trials
    ]
    return [float(mean) for mean in np.mean(rows, axis=0)]


def _curve(
    method: str,
    of_seed: Mapping[int, list[Evaluation]],
    ends: Mapping[int, float],
    split: Split,
    unit: Unit,
    grid: int,
) -> Curve:
    time = np.linspace(0.0, 1.0, grid)
    rows = np.array(
        [
            np.interp(
                time, [clock(e, unit) / ends[s] for e in trial], [accuracy(e, split) for e in trial]
            )
            for s, trial in of_seed.items()
        ]
    )
    low, high = _band(rows)
    end = np.mean([clock(trial[-1], unit) / ends[s] for s, trial in of_seed.items()])
    lines = [tuple(map(float, line)) for line in (time, rows.mean(axis=0), low, high)]
    return Curve(method, split, unit, len(rows), float(end), *lines)


def _band(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the interval of the mean over the first axis, column by column."""
    n = len(rows)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(counts @ rows / n, [tail, 1 - tail], axis=0)
    return low, high
