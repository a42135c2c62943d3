"""The cost of a step on this model and machine: measured seconds, counted operations.

`theory.costs` has the cost model; this module fits it. All cutoffs are timed in every round, in
random order, so that a slow moment of the machine affects all of them. Low quantiles over rounds
are fitted to the additive model, and so are those of resampled rounds: the spread of these fits is
the uncertainty of the costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from dropmuon.norms import AdamW
from dropmuon.optimizer import DropMuon
from dropmuon.planning.problem import Problem
from dropmuon.planning.timing import Clock, StepTimer, Timings, check_budget, typical
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import StepCosts, cost_of_set

__all__ = ["MeasuredCosts", "fit_seconds", "measure_costs"]

_COUNTING_SHARE = 0.4
"""The share of the budget for counting operations; cutoffs not counted are interpolated."""

_PRIOR = 0.01
"""The least weight of the prior, an equal cost per layer and per operation, against a time."""

_PARTS_DIFFER = 0.5
"""The share of their mean by which parts are assumed to differ from the prior."""

_RESAMPLES = 40

_ALONE = 0.2
"""The weight of the update of a single layer against that of all layers from a cutoff on."""

_LR_FACTOR = 1e-12
"""The factor on learning rates while measuring: the arithmetic of a step without its effect."""


@dataclass(frozen=True, eq=False)
class MeasuredCosts:
    """The costs of a step, in seconds and in operations.

    Attributes:
        layers: names, in order.
        seconds: the fitted parts; `seconds.fresh()` and the like return the paper's costs.
        operations: the same parts in floating-point operations of matrix products.
        seconds_by_cutoff: the measured time of a whole step for each cutoff; NaN where the budget
            did not allow a measurement.
        operations_by_cutoff: the operations of a whole step, update included, for each cutoff.
        rounds: how many times every cutoff was measured.
        fit_error: the largest relative difference of `predict` and `seconds_by_cutoff`.
        resampled: `seconds` as fitted to resampled rounds; empty if no round was completed.
        takes_turns: whether the matrices of a layer can take turns, see `DropMuon(turns=)`.
    """

    layers: tuple[str, ...]
    seconds: StepCosts
    operations: StepCosts
    seconds_by_cutoff: FloatArray
    operations_by_cutoff: FloatArray
    rounds: int
    fit_error: float
    resampled: tuple[StepCosts, ...] = ()
    takes_turns: tuple[bool, ...] = ()

    @property
    def known(self) -> bool:
        """Whether every cutoff was measured, so that the uncertainty of the costs is known."""
        return self.rounds > 0

    @property
    def coverage(self) -> str:
        """How many cutoffs were measured, in words."""
        times = self.seconds_by_cutoff
        return f"{int(np.isfinite(times).sum())} of {times.size} cutoffs"

    def predict(self, active: Iterable[int]) -> float:
        """Return the predicted seconds of a step that moves these layers, on a fresh batch."""
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
    """Measure the cost of a step for every cutoff, and split it into parts per layer.

    Args:
        problem: the model, its loss and batches; they are left as they were.
        optimizer_settings: arguments of `DropMuon` after the model.
        budget: approximate time to spend, in seconds. There are 25 rounds at most.
        on_progress: called with the share done, from 0 to 1.
        seed: seed of the order of measurements and of the resampling.
        clock: a function that returns the time in seconds.
    """
    check_budget(budget)
    tell = on_progress or (lambda share: None)
    start = clock()
    with problem.prepared(optimizer_settings) as optimizer:
        for group in optimizer.param_groups:
            group["lr"] = float(group["lr"]) * _LR_FACTOR
        timer = StepTimer(problem, optimizer, clock)
        timer.warm_up()
        timer.count(clock() + _COUNTING_SHARE * max(0.0, start + budget - clock()))
        shares = np.median([timer.forward_shares(clock) for _ in range(3)], axis=0)
        rng = np.random.default_rng(seed)
        rounds = timer.time(start, budget, rng, tell)
        by_cutoff, operations = timer.operations()
        seconds = fit_seconds(timer.timings, shares, operations)
        resampled = tuple(
            fit_seconds(timer.timings.resampled(rounds, rng), shares, operations)
            for _ in range(_RESAMPLES if rounds else 0)
        )
        layers, turning = optimizer.layers, _takes_turns(optimizer)
    measured = timer.timings.steps(len(layers))
    fresh = seconds.fresh()
    predicted = np.array([cost_of_set(fresh, range(s, len(layers))) for s in range(len(layers))])
    error = float(np.nanmax(np.abs(predicted - measured) / np.maximum(measured, 1e-12)))
    tell(1.0)
    found = (layers, seconds, operations, measured, by_cutoff, rounds, error, resampled)
    return MeasuredCosts(*found, turning)


def fit_seconds(timings: Timings, shares: npt.ArrayLike, operations: StepCosts) -> StepCosts:
    """Fit the additive model to typical times, all parts >= 0 (non-negative least squares).

    The passes at cutoff s take C + sum_{i>=s} backward_i, where C is the whole forward pass, split
    by `shares`, and overhead. The time that a forward pass takes to record for backward counts as
    backward. An update of S takes U + sum_{i in S} sharp_i. Where neighbours differ by noise only,
    or a cutoff was not measured, a prior of two numbers decides: a cost per layer and one per
    operation. Suffixes do not tell a weight gradient from the rest of a layer's backward: its part
    of the time is its part of the operations.
    """
    b, cutoffs = operations.num_layers, timings.cutoffs
    tails = np.array([[1.0] + [float(i >= s) for i in range(b)] for s in cutoffs])
    both = [np.add(timings.forward[s], timings.backward[s]) for s in cutoffs]
    passes = np.array([typical(each) for each in both])
    forward = min(typical(timings.forward[s]) for s in cutoffs)
    forward = min(forward, float(passes.min()))
    counted = operations.backward + operations.weight
    constant, backward = _fit(tails, passes - forward, np.ones(len(cutoffs)), counted, _noise(both))
    weight = backward * operations.weight / np.maximum(counted, 1.0)
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
    rest = np.maximum(backward - weight, 0.0)
    return StepCosts(constant + fixed, forward * share, rest, sharp, weight=weight)


def _takes_turns(optimizer: DropMuon) -> tuple[bool, ...]:
    """Return for each layer whether it has matrices to orthogonalise, at a constant radius."""
    if optimizer.step_rule.uses_dual:
        return (False,) * len(optimizer.layers)
    return tuple(
        any(
            not isinstance(member.norm, AdamW) and member.norm.direction_cost(member.parameter) > 0
            for member in layer
        )
        for layer in optimizer.roster.layers
    )


def _noise(times: Sequence[FloatArray]) -> float:
    """Return the spread of repeated measurements of a typical cutoff, rare delays left out."""
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
