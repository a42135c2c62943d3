r"""How curved the loss is along the method's own steps: L0_{i,S} and L1_{i,S}, estimated.

The assumption "supp(D)--layer-wise (L0, L1)--smoothness II" asks, for steps Gamma on the layers S,

.. math::
    \|\nabla_i f(X+\Gamma) - \nabla_i f(X)\|_{(i)\star}
    \le (L^0_{i,S} + L^1_{i,S} \|\nabla_i f(X)\|_{(i)\star}) \|\Gamma_i\|_{(i)} .

At the points X of a short run, Gamma is the step that the method would take along the gradient of
a batch, and both gradients are of that batch, with the same random numbers: noise does not enter.
What is found bounds what was seen, and is a lower bound of the true constants.
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
from dropmuon.planning.bisection import bisected
from dropmuon.planning.checks import check_budget, check_confidence
from dropmuon.planning.probe import Probe
from dropmuon.planning.problem import Problem
from dropmuon.planning.resampling import LEAST_POINTS, ends, envelope_draws, smooth_draws
from dropmuon.samplers.base import ActiveSet, FloatArray, active_set
from dropmuon.theory.smoothness import Smoothness

__all__ = ["Intervals", "SmoothnessEstimate", "estimate_smoothness", "summarize"]

_RESAMPLES = 200

_FIRST = 0.2
"""The share of the budget after which the first point takes no more sets."""


class Intervals(NamedTuple):
    """Intervals of constants: arrays (layers, 2) of lower and upper ends, per set."""

    smooth: dict[ActiveSet, FloatArray]
    l0: dict[ActiveSet, FloatArray]
    l1: dict[ActiveSet, FloatArray]


@dataclass(frozen=True, eq=False)
class SmoothnessEstimate:
    """Constants of every layer for every set, and what they were found from.

    Attributes:
        layers: names, in order.
        smooth: L0 alone, the largest ratio seen (L1 = 0).
        generalized: the line L0 + L1 * dual above all ratios with the least total excess.
        intervals: of both, by `resampling`: how far the constants may be above what was seen.
            With fewer than three points they are (0, inf).
        ratios: per set, (points, layers): ||grad_i difference||_* / ||Gamma_i||, NaN outside of
            the set and where a layer did not move.
        duals: (points, layers): ||grad_i||_* at the points.
        confidence: of the intervals.
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
    clock: Callable[[], float] = time.perf_counter,
) -> SmoothnessEstimate:
    """Estimate the constants of `theory.Smoothness` along a short run of full updates.

    A layer of several parameters has the geometry of their joint LMO step: its norm is the largest
    of theirs, its dual norm the sum of theirs. Spectral norms and their duals are exact, from
    singular values, whatever orthogonaliser makes the step. Parameters on AdamW are measured in
    the max-entry norm, whose step AdamW's resembles.

    The constants of a set hold for all its subsets, so each is at least those of the subsets: the
    estimates are monotone, as Lemma "smooth_subs" has them. Suffixes that there was no time for
    have the constants of the next larger one that was measured, which bound theirs.

    Args:
        problem: the model, its loss and batches; they are left as they were.
        optimizer_settings: arguments of `DropMuon` after the model; `lr` is the radius of the step.
        sets: active sets, the progressive ones {s, ..., b-1} by default.
        points: steps of the run, each a point X.
        budget: seconds to spend, about. The first point takes the sets in their order for a fifth
            of it, one set at least. The sets that it gets to are measured at all points; the last
            of them are left out where there would else be no time for three points.
        confidence: of the intervals.
        seed: of the resampling that intervals come from.
        on_progress: called with the share done, from 0 to 1.
        clock: what to read seconds from.
    """
    check_budget(budget)
    whole_number("points", points)
    check_confidence(confidence)
    tell = on_progress or (lambda share: None)
    start = clock()
    with problem.prepared(optimizer_settings) as optimizer:
        layers, adamw = optimizer.layers, _on_adamw(optimizer)
        chosen = _chosen(sets, len(layers))
        duals: list[FloatArray] = []
        rows: list[dict[ActiveSet, FloatArray]] = []
        took = 0.0
        while len(rows) < points and (not rows or clock() - start + took <= budget):
            begun = clock()
            until = begun + _share(len(rows), points) * (start + budget - begun)
            probe = Probe(problem, optimizer, len(rows))
            row: dict[ActiveSet, FloatArray] = {}
            for n, active in enumerate(chosen):
                if row and clock() >= until:
                    break
                tell((len(rows) + n / len(chosen)) / points)
                row[active] = probe.ratios(active)
            chosen = list(row)
            probe.advance()
            duals.append(probe.duals)
            rows.append(row)
            took = clock() - begun if len(rows) >= LEAST_POINTS else 0.0
    ratios = {active: np.stack([row[active] for row in rows]) for active in chosen}
    found = np.stack(duals)
    summary = summarize(found, ratios, confidence, seed)
    tell(1.0)
    return SmoothnessEstimate(layers, *summary, ratios, found, confidence, adamw)


def summarize(
    duals: FloatArray, ratios: Mapping[ActiveSet, FloatArray], confidence: float, seed: int
) -> tuple[Smoothness, Smoothness, Intervals]:
    """Constants of all points and their intervals: of the measured sets, and of all suffixes."""
    points, b = duals.shape
    smooth = smooth_draws(ratios, b, _RESAMPLES, seed)
    l0, l1 = envelope_draws(duals, ratios, _RESAMPLES, seed)
    best = [{s: table[0] for s, table in draws.items()} for draws in (smooth, l0, l1)]
    intervals = Intervals(
        *(
            {s: ends(table, points, confidence) for s, table in draws.items()}
            for draws in (smooth, l0, l1)
        )
    )
    return Smoothness(best[0]), Smoothness(best[1], best[2]), intervals


def _chosen(sets: Iterable[ActiveSet] | None, b: int) -> list[ActiveSet]:
    if sets is None:
        return [tuple(range(s, b)) for s in bisected(b)]
    found = list(dict.fromkeys(active_set("sets", each, b) for each in sets))
    if not found:
        raise ValueError("sets must not be empty, got none; leave it out for the progressive ones")
    return found


def _share(visited: int, points: int) -> float:
    """Of the time that is left, what the next point may take before it leaves out sets."""
    needed = min(points, LEAST_POINTS) - visited
    if visited == 0 and points > 1:
        return _FIRST
    return 1.0 / needed if needed > 0 else math.inf


def _on_adamw(optimizer: DropMuon) -> tuple[str, ...]:
    marked = (any(isinstance(s.norm, norms.AdamW) for s in x) for x in optimizer.roster.layers)
    return tuple(name for name, is_on in zip(optimizer.layers, marked, strict=True) if is_on)
