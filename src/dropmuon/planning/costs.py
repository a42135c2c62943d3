"""What a step costs on this model and machine: seconds measured, operations counted.

Every cutoff is timed in turn, in random order within each round, so that a slow moment of the
machine hits all alike; low quantiles over rounds are fitted to the additive model of
`theory.costs`, and so are those of resampled rounds: how far the fits differ is their uncertainty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from dropmuon.planning.checks import check_budget
from dropmuon.planning.problem import Problem
from dropmuon.planning.timing import Bench, Clock, Timings, typical
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import StepCosts, cost_of_set

__all__ = ["MeasuredCosts", "fit_seconds", "measure_costs"]

_COUNTING_SHARE = 0.4
"""Of the budget, for counting operations; cutoffs that are left over are interpolated."""

_PRIOR = 0.01
"""Least weight of "so much per layer and per operation" against a time; noisy times weigh less."""

_PARTS_DIFFER = 0.5
"""By such a share of their mean, parts are taken to differ from what that prior says."""

_RESAMPLES = 40

_ALONE = 0.2
"""Weight of the update of one layer alone against the update of all layers from a cutoff on."""

_STILL = 1e-12
"""Factor on learning rates while measuring: the arithmetic of a step, without its effect."""


@dataclass(frozen=True, eq=False)
class MeasuredCosts:
    """Costs of a step, in seconds and in operations.

    Attributes:
        layers: names, in order.
        seconds: the fitted parts; `seconds.fresh()` and so on read them as the paper's costs.
        operations: the same parts in floating-point operations of matrix products.
        seconds_by_cutoff: the measured time of a whole step for each cutoff; NaN where the budget
            did not allow a measurement.
        operations_by_cutoff: of a whole step, update included.
        rounds: how often every cutoff was measured.
        fit_error: the largest relative difference of `predict` and `seconds_by_cutoff`.
        resampled: what `seconds` would be by other rounds; none if no round was whole.
    """

    layers: tuple[str, ...]
    seconds: StepCosts
    operations: StepCosts
    seconds_by_cutoff: FloatArray
    operations_by_cutoff: FloatArray
    rounds: int
    fit_error: float
    resampled: tuple[StepCosts, ...] = ()

    @property
    def known(self) -> bool:
        """Whether every cutoff was measured, so that it is known how far off costs may be."""
        return self.rounds > 0

    def predict(self, active: Iterable[int]) -> float:
        """Return the seconds of a step that moves these layers, on a fresh batch."""
        return cost_of_set(self.seconds.fresh(), active)


def measure_costs(
    problem: Problem,
    optimizer_settings: Mapping[str, Any],
    budget: float = 20.0,
    on_progress: Callable[[float], None] | None = None,
    *,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> MeasuredCosts:
    """Measure what a step costs for every cutoff, and split it into parts per layer.

    Args:
        problem: the model, its loss and batches; they are left as they were.
        optimizer_settings: arguments of `DropMuon` after the model.
        budget: seconds to spend, about. Rounds end with it, or when there are 25.
        on_progress: called with the share done, from 0 to 1.
        seed: of the order of measurements.
        clock: what to read seconds from.
    """
    check_budget(budget)
    tell = on_progress or (lambda share: None)
    start = clock()
    with problem.prepared(optimizer_settings) as optimizer:
        for group in optimizer.param_groups:
            group["lr"] = float(group["lr"]) * _STILL
        bench = Bench(problem, optimizer, clock)
        bench.warm_up()
        bench.count(clock() + _COUNTING_SHARE * max(0.0, start + budget - clock()))
        shares = np.median([bench.forward_shares(clock) for _ in range(3)], axis=0)
        rng = np.random.default_rng(seed)
        rounds = bench.time(start, budget, rng, tell)
        by_cutoff, operations = bench.operations()
        seconds = fit_seconds(bench.timings, shares, operations)
        resampled = tuple(
            fit_seconds(bench.timings.resampled(rounds, rng), shares, operations)
            for _ in range(_RESAMPLES if rounds else 0)
        )
        layers = optimizer.layers
    measured = bench.timings.steps(len(layers))
    fresh = seconds.fresh()
    predicted = np.array([cost_of_set(fresh, range(s, len(layers))) for s in range(len(layers))])
    error = float(np.nanmax(np.abs(predicted - measured) / np.maximum(measured, 1e-12)))
    tell(1.0)
    return MeasuredCosts(layers, seconds, operations, measured, by_cutoff, rounds, error, resampled)


def fit_seconds(timings: Timings, shares: npt.ArrayLike, operations: StepCosts) -> StepCosts:
    """Fit the additive model to typical times, all parts >= 0 (non-negative least squares).

    The passes at cutoff s take C + sum_{i>=s} backward_i; C is the whole forward pass, split by
    `shares`, and overhead. What a forward pass takes longer because it records for backward counts
    as backward. An update of S takes U + sum_{i in S} sharp_i. Where neighbours differ by noise, or
    no cutoff was measured, a fit of two numbers decides: so much per layer and per operation.
    """
    b, cutoffs = operations.num_layers, timings.cutoffs
    tails = np.array([[1.0] + [float(i >= s) for i in range(b)] for s in cutoffs])
    both = [np.add(timings.forward[s], timings.backward[s]) for s in cutoffs]
    passes = np.array([typical(each) for each in both])
    forward = min(typical(timings.forward[s]) for s in cutoffs)
    forward = min(forward, float(passes.min()))
    constant, backward = _fit(
        tails, passes - forward, np.ones(len(cutoffs)), operations.backward, _noise(both)
    )
    single = sorted(timings.alone)
    ones = np.array([[1.0] + [float(i == j) for i in range(b)] for j in single]).reshape(-1, b + 1)
    updates = [typical(timings.update[s]) for s in cutoffs]
    alone = [typical(timings.alone[j]) for j in single]
    weights = np.array([1.0] * len(cutoffs) + [_ALONE] * len(single))
    fixed, sharp = _fit(
        np.concatenate([tails, ones]),
        np.array(updates + alone),
        weights,
        operations.sharp,
        _noise([np.array(timings.update[s]) for s in cutoffs]),
    )
    share = np.asarray(shares, dtype=np.float64)
    share = share / share.sum() if share.sum() > 0 else np.full(b, 1.0 / b)
    return StepCosts(constant + fixed, forward * share, backward, sharp)


def _noise(times: Sequence[FloatArray]) -> float:
    """How far apart measurements of the same are, of a typical cutoff; rare delays do not enter."""
    return float(np.median([np.median(each) - typical(each) for each in times]))


def _fit(
    rows: FloatArray,
    values: FloatArray,
    weights: FloatArray,
    operations: FloatArray,
    noise: float,
) -> tuple[float, FloatArray]:
    """Return (constant, parts) >= 0 with rows @ (constant, *parts) close to the values."""
    scale = max(float(values.max()), 1e-12)
    left, right = rows * weights[:, None], values * weights / scale
    kinds = np.stack([np.ones(operations.size), operations / max(operations.max(), 1.0)], axis=1)
    shared, _ = nnls(np.column_stack([left[:, 0], left[:, 1:] @ kinds]), right)
    guess = kinds @ shared[1:]
    doubt = noise / max(scale * _PARTS_DIFFER * float(guess.mean()), 1e-12)
    weight = max(doubt, _PRIOR)
    prior = weight * np.eye(guess.size + 1)[1:]
    solution, _ = nnls(np.concatenate([left, prior]), np.concatenate([right, weight * guess]))
    return float(solution[0]) * scale, solution[1:] * scale
