"""Evaluations sorted into trials, with their two accuracies and two clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal

from dropmuon.checks import unknown_name
from dropmuon.lab.run import Evaluation, methods_in

__all__ = [
    "SPLITS",
    "UNITS",
    "Axis",
    "Split",
    "Unit",
    "accuracy",
    "activity",
    "along",
    "as_far",
    "clock",
    "finished",
    "in_order",
    "mean_line",
    "trials",
]

Split = Literal["train", "test"]
Unit = Literal["seconds", "operations"]
Axis = Literal["epoch", "seconds", "operations"]

SPLITS: tuple[Split, ...] = ("train", "test")
UNITS: tuple[Unit, ...] = ("seconds", "operations")


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
    far = max((trial[-1].epoch for trial in of_seed.values()), default=0.0)
    return {seed: t for seed, t in of_seed.items() if as_far(t[-1].epoch, far)}


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


def as_far(epoch: float, other: float) -> bool:
    """Return whether training lasted at least as many epochs."""
    return epoch >= other - 1e-6


def along(evaluation: Evaluation, axis: Axis) -> float:
    """Return the training so far, in epochs or in time."""
    return evaluation.epoch if axis == "epoch" else clock(evaluation, axis)


def mean_line(
    of_seed: Mapping[int, list[Evaluation]], axis: Axis, split: Split
) -> list[tuple[float, float]]:
    """Return (time, accuracy) averaged over finished trials, at the steps that all of them have."""
    whole = [{each.step: each for each in trial} for trial in finished(of_seed).values()]
    if not whole:
        return []
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
    """
    moved: dict[tuple[float, float], list[int]] = {}
    steps: dict[tuple[float, float], int] = {}
    for trial in of_seed.values():
        for before, after in pairwise(trial):
            if not after.moved or after.step == before.step:
                continue
            place = (before.epoch, after.epoch)
            sums = moved.get(place, [0] * len(after.moved))
            moved[place] = [one + other for one, other in zip(sums, after.moved, strict=True)]
            steps[place] = steps.get(place, 0) + after.step - before.step
    places = sorted(moved)
    if not places:
        return [], []
    columns = [[count / steps[place] for count in moved[place]] for place in places]
    edges = [places[0][0], *(end for _, end in places)]
    return edges, [list(row) for row in zip(*columns, strict=True)]
