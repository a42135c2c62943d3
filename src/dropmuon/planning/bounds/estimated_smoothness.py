r"""The constants L0_{i,S} and L1_{i,S} of a model, estimated along the method's own steps.

The assumption "supp(D)--layer-wise (L0, L1)--smoothness II" is, for steps Gamma on the layers S,

.. math::
    \|\nabla_i f(X+\Gamma) - \nabla_i f(X)\|_{(i)\star}
    \le (L^0_{i,S} + L^1_{i,S} \|\nabla_i f(X)\|_{(i)\star}) \|\Gamma_i\|_{(i)} .

At the points X of a short run, Gamma is the step that the method would take along the gradient of
a batch. Both gradients are of that batch and use the same random numbers, so noise does not enter.
The estimates bound all ratios that were measured, and are lower bounds of the true constants.
`theory.smoothness` has the container for the constants; this module measures them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dropmuon import norms
from dropmuon.checks import whole_number
from dropmuon.optimizer import DropMuon
from dropmuon.planning.bounds.constants import (
    LEAST_POINTS,
    check_confidence,
    interval_ends,
    resampled_generalized,
    resampled_smooth,
)
from dropmuon.planning.bounds.probe import Probe
from dropmuon.planning.problem import Problem
from dropmuon.planning.timing import Clock, bisected, check_budget
from dropmuon.samplers import ActiveSet
from dropmuon.samplers.base import FloatArray, active_set
from dropmuon.theory.smoothness import Smoothness

__all__ = ["Intervals", "SmoothnessEstimate", "estimate_smoothness", "summarize"]

_RESAMPLES = 200

_FIRST_SHARE = 0.2
"""The share of the budget after which the first point takes no more sets."""


class Intervals(NamedTuple):
    """Intervals of constants per set: arrays (layers, 2) of lower and upper ends."""

    smooth: dict[ActiveSet, FloatArray]
    l0: dict[ActiveSet, FloatArray]
    l1: dict[ActiveSet, FloatArray]


@dataclass(frozen=True, eq=False)
class SmoothnessEstimate:
    """The constants of every layer for every set, and the measurements behind them.

    Attributes:
        layers: names, in order.
        smooth: L0 alone, the largest ratio (L1 = 0).
        generalized: L0 and L1 of the line L0 + L1 * dual above all ratios with the least total
            excess.
        intervals: intervals for all of them, see `constants`; (0, inf) with fewer than three
            points.
        ratios: per set, (points, layers): ||grad_i difference||_* / ||Gamma_i||, NaN outside the
            set and where a layer did not move.
        duals: (points, layers): ||grad_i||_* at the points.
        confidence: confidence of the intervals.
        adamw: the layers with parameters on AdamW, which are measured in the max-entry norm.
    """

    layers: tuple[str, ...]
    smooth: Smoothness
    generalized: Smoothness
    intervals: Intervals
    ratios: dict[ActiveSet, FloatArray]
    duals: FloatArray
    confidence: float
    adamw: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """The number of points that were visited."""
        return len(self.duals)


def estimate_smoothness(
    problem: Problem,
    optimizer_settings: Mapping[str, Any],
    sets: Iterable[ActiveSet] | None = None,
    points: int = 12,
    budget: float = 30.0,
    confidence: float = 0.9,
    seed: int = 0,
    on_progress: Callable[[float], None] | None = None,
    *,
    clock: Clock = time.perf_counter,
) -> SmoothnessEstimate:
    """Estimate the constants of `theory.Smoothness` along a short run of full updates.

    A layer of several parameters has the norm that the optimizer's step rule gives it: by default
    the largest of their norms, with the sum of their dual norms as dual. Spectral norms and their
    duals are exact, from singular values, whatever orthogonaliser makes the step. Parameters on
    AdamW are measured in the max-entry norm, whose step resembles AdamW's.

    The constants of a set hold for its subsets, so each is at least as large as theirs: the
    estimates are monotone, as in Lemma "smooth_subs". Suffixes that there was no time for get the
    constants of the next larger suffix that was measured, which bound theirs.

    Args:
        problem: the model, its loss and batches; they are left as they were.
        optimizer_settings: arguments of `DropMuon` after the model; `lr` is the radius of the step.
        sets: active sets, by default the progressive ones {s, ..., b-1}.
        points: the number of points X, each after a step of the run.
        budget: approximate time to spend, in seconds. The first point measures the sets in order
            for a fifth of it, at least one set. Later points measure the same sets, except for the
            last ones where there would otherwise be no time for three points.
        confidence: confidence of the intervals.
        seed: seed of the resampling that intervals come from.
        on_progress: called with the share done, from 0 to 1.
        clock: a function that returns the time in seconds.
    """
    check_budget(budget)
    whole_number("points", points)
    check_confidence(confidence)
    tell = on_progress or (lambda share: None)
    start = clock()
    with problem.prepared(optimizer_settings) as optimizer:
        layers, adamw = optimizer.layers, _on_adamw(optimizer)
        chosen = _chosen(sets, len(layers))
        duals, rows = _run(problem, optimizer, chosen, points, start + budget, tell, clock)
    ratios = {active: np.stack([row[active] for row in rows]) for active in rows[-1]}
    found = np.stack(duals)
    summary = summarize(found, ratios, confidence, seed)
    tell(1.0)
    return SmoothnessEstimate(layers, *summary, ratios, found, confidence, adamw)


def summarize(
    duals: FloatArray, ratios: Mapping[ActiveSet, FloatArray], confidence: float, seed: int
) -> tuple[Smoothness, Smoothness, Intervals]:
    """Return smooth and generalized constants and their intervals, of all sets and suffixes."""
    points, b = duals.shape
    smooth = resampled_smooth(ratios, b, _RESAMPLES, seed)
    l0, l1 = resampled_generalized(duals, ratios, _RESAMPLES, seed)
    best = [{s: table[0] for s, table in found.items()} for found in (smooth, l0, l1)]
    intervals = Intervals(
        *(
            {s: interval_ends(table, points, confidence) for s, table in found.items()}
            for found in (smooth, l0, l1)
        )
    )
    return Smoothness(best[0]), Smoothness(best[1], best[2]), intervals


def _run(
    problem: Problem,
    optimizer: DropMuon,
    sets: list[ActiveSet],
    points: int,
    end: float,
    tell: Callable[[float], None],
    clock: Clock,
) -> tuple[list[FloatArray], list[dict[ActiveSet, FloatArray]]]:
    """Return dual norms and ratios at each point; a later point never has more sets."""
    duals: list[FloatArray] = []
    rows: list[dict[ActiveSet, FloatArray]] = []
    took = 0.0
    while len(rows) < points and (not rows or clock() + took <= end):
        begun = clock()
        until = begun + _share(len(rows), points) * (end - begun)
        probe = Probe(problem, optimizer, len(rows))
        row: dict[ActiveSet, FloatArray] = {}
        for n, active in enumerate(sets):
            if row and clock() >= until:
                break
            tell((len(rows) + n / len(sets)) / points)
            row[active] = probe.ratios(active)
        sets = list(row)
        probe.advance()
        duals.append(probe.duals)
        rows.append(row)
        took = clock() - begun if len(rows) >= LEAST_POINTS else 0.0
    return duals, rows


def _chosen(sets: Iterable[ActiveSet] | None, b: int) -> list[ActiveSet]:
    if sets is None:
        return [tuple(range(s, b)) for s in bisected(b)]
    found = list(dict.fromkeys(active_set("sets", each, b) for each in sets))
    if not found:
        raise ValueError("sets must not be empty, got none; leave it out for the progressive ones")
    return found


def _share(visited: int, points: int) -> float:
    """Return the share of the remaining time after which the next point leaves out sets."""
    needed = min(points, LEAST_POINTS) - visited
    if visited == 0 and points > 1:
        return _FIRST_SHARE
    return 1.0 / needed if needed > 0 else math.inf


def _on_adamw(optimizer: DropMuon) -> tuple[str, ...]:
    marked = (any(isinstance(s.norm, norms.AdamW) for s in x) for x in optimizer.roster.layers)
    return tuple(name for name, is_on in zip(optimizer.layers, marked, strict=True) if is_on)
