"""The paper's "Evaluation Metrics", on lists of evaluations.

Targets are in percent, accuracies in [0, 1]. A ratio is the time of the baseline over the time of
the method on the same seed: above 1 the method is faster. Seeds are compared where both have what
is needed; missed targets are counted, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dropmuon.lab.analysis.series import (
    Split,
    Unit,
    accuracy,
    clock,
    finished,
    in_order,
    interval,
    shown_loss,
    trials,
)
from dropmuon.lab.run import Evaluation

__all__ = ["Final", "Speedup", "Spread", "finals", "speedups", "time_to_target"]


@dataclass(frozen=True)
class Speedup:
    """How many times as fast as the baseline a method reached a target.

    Attributes:
        ratio: mean over the seeds where both reached it; None where there are none.
        low: lower end of the bootstrap interval; None with fewer than two such seeds.
        high: its upper end.
        ratios: the ratio of each such seed.
        time: the method's mean time over the seeds that reached it.
        reached: how many of the method's `seeds` reached it.
        baseline_reached: how many of the baseline's `baseline_seeds` reached it.
    """

    method: str
    split: Split
    unit: Unit
    target: float
    ratio: float | None
    low: float | None
    high: float | None
    ratios: dict[int, float]
    time: float | None
    reached: int
    seeds: int
    baseline_reached: int
    baseline_seeds: int


@dataclass(frozen=True)
class Spread:
    """Mean, least and greatest over seeds."""

    mean: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return that of one value per seed."""
        return cls(float(np.mean(values)), min(values), max(values))


@dataclass(frozen=True)
class Final:
    """Where a method ended and what that cost.

    Attributes:
        seeds: how many trials went as far as the furthest; only these count here.
        steps: of its longest trial.
        loss: on the test set, in bits per byte if `in_bits`; None if it is not finite on a seed.
        seconds: mean over seeds, as are `operations` and the costs of a step.
        seconds_share: `seconds` over the baseline's, where both took equally many steps.
        step_seconds_share: `seconds_per_step` over the baseline's; operations likewise.
    """

    method: str
    seeds: int
    steps: int
    train: Spread
    test: Spread
    loss: Spread | None
    in_bits: bool
    seconds: float
    operations: float
    seconds_per_step: float | None
    operations_per_step: float | None
    seconds_share: float | None = None
    operations_share: float | None = None
    step_seconds_share: float | None = None
    step_operations_share: float | None = None


def time_to_target(
    evaluations: Iterable[Evaluation],
    target: float,
    split: Split = "train",
    unit: Unit = "seconds",
) -> float | None:
    """Return the clock of one trial at its first evaluation with at least the target accuracy."""
    for each in in_order(evaluations):
        if accuracy(each, split) >= target / 100:
            return clock(each, unit)
    return None


def speedups(
    evaluations: Iterable[Evaluation],
    baseline: str,
    targets: Sequence[float],
    split: Split = "train",
    unit: Unit = "seconds",
) -> list[Speedup]:
    """Return the time-to-target ratios of every method, the baseline included, at every target."""
    by_method = trials(evaluations)
    found = []
    for target in targets:
        times = {
            method: {s: time_to_target(t, target, split, unit) for s, t in of_seed.items()}
            for method, of_seed in by_method.items()
        }
        for method, own in times.items():
            found.append(_speedup(method, own, times.get(baseline, {}), (split, unit, target)))
    return found


def finals(evaluations: Iterable[Evaluation], baseline: str) -> list[Final]:
    """Return the final quality of every method, and its cost compared with the baseline."""
    found = [_final(method, of_seed) for method, of_seed in trials(evaluations).items()]
    base = next((each for each in found if each.method == baseline), None)
    return found if base is None else [_beside(each, base) for each in found]


def _speedup(
    method: str,
    own: Mapping[int, float | None],
    base: Mapping[int, float | None],
    key: tuple[Split, Unit, float],
) -> Speedup:
    ratios = {}
    for seed, time in own.items():
        ratio = _ratio(base.get(seed), time)
        if ratio is not None:
            ratios[seed] = ratio
    low, high = interval(list(ratios.values()))
    times = [time for time in own.values() if time is not None]
    return Speedup(
        method=method,
        split=key[0],
        unit=key[1],
        target=key[2],
        ratio=_mean(ratios.values()),
        low=low,
        high=high,
        ratios=ratios,
        time=_mean(times),
        reached=len(times),
        seeds=len(own),
        baseline_reached=sum(time is not None for time in base.values()),
        baseline_seeds=len(base),
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    """Return the ratio, or None where it has no meaning; equal times, 0 included, make 1."""
    if above is None or below is None:
        return None
    if above == below:
        return 1.0
    return above / below if above > 0 and below > 0 else None


def _final(method: str, of_seed: Mapping[int, list[Evaluation]]) -> Final:
    last = [trial[-1] for trial in finished(of_seed).values()]
    losses = _known(shown_loss(each) for each in last)
    return Final(
        method=method,
        seeds=len(last),
        steps=max(each.step for each in last),
        train=Spread.of([each.train_accuracy for each in last]),
        test=Spread.of([each.test_accuracy for each in last]),
        loss=Spread.of(losses) if len(losses) == len(last) else None,
        in_bits=any(each.test_bits_per_byte is not None for each in last),
        seconds=float(np.mean([each.seconds for each in last])),
        operations=float(np.mean([each.operations for each in last])),
        seconds_per_step=_mean(_known(_per_step(each, "seconds") for each in last)),
        operations_per_step=_mean(_known(_per_step(each, "operations") for each in last)),
    )


def _beside(own: Final, base: Final) -> Final:
    """Add the shares of the baseline's costs; of totals only after equally many steps."""
    equal = own.steps == base.steps
    return replace(
        own,
        seconds_share=_ratio(own.seconds, base.seconds) if equal else None,
        operations_share=_ratio(own.operations, base.operations) if equal else None,
        step_seconds_share=_ratio(own.seconds_per_step, base.seconds_per_step),
        step_operations_share=_ratio(own.operations_per_step, base.operations_per_step),
    )


def _per_step(evaluation: Evaluation, unit: Unit) -> float | None:
    return clock(evaluation, unit) / evaluation.step if evaluation.step else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None
