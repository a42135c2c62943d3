"""Normalised curve averaging, of the paper's "Evaluation Metrics": one curve over many seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dropmuon.lab.analysis.bootstrap import band
from dropmuon.lab.analysis.series import Split, Unit, accuracy, as_far, clock, finished, trials
from dropmuon.lab.run import Evaluation

__all__ = ["Curve", "normalized_curves"]


@dataclass(frozen=True)
class Curve:
    """Accuracy over time, where the baseline ends at 1: mean over seeds and a bootstrap band.

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


def normalized_curves(
    evaluations: Iterable[Evaluation],
    baseline: str,
    split: Split = "train",
    unit: Unit = "seconds",
    grid: int = 101,
) -> list[Curve]:
    """Normalised curve averaging: each seed's time divided by the time the baseline took there.

    A trial takes part where it and the baseline on its seed went as far as the baseline ever did.
    """
    if grid < 2:
        raise ValueError(f"grid must be at least 2 points, got {grid}")
    by_method = trials(evaluations)
    whole = finished(by_method.get(baseline, {}))
    ends = {seed: clock(trial[-1], unit) for seed, trial in whole.items()}
    ends = {seed: end for seed, end in ends.items() if end > 0}
    far = max((trial[-1].epoch for trial in whole.values()), default=0.0)
    found = []
    for method, of_seed in by_method.items():
        taking_part = {s: t for s, t in of_seed.items() if s in ends and as_far(t[-1].epoch, far)}
        if taking_part:
            found.append(_curve(method, taking_part, ends, split, unit, grid))
    return found


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
    low, high = band(rows)
    end = np.mean([clock(trial[-1], unit) / ends[s] for s, trial in of_seed.items()])
    lines = [tuple(map(float, line)) for line in (time, rows.mean(axis=0), low, high)]
    return Curve(method, split, unit, len(rows), float(end), *lines)
