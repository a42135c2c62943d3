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

from dropmuon.planning.envelope import upper_envelopes
from dropmuon.planning.probe import Probe
from dropmuon.planning.problem import Problem
from dropmuon.theory.distributions import ActiveSet, FloatArray, active_set
from dropmuon.theory.smoothness import Smoothness

__all__ = ["Intervals", "SmoothnessEstimate", "estimate_smoothness", "summarize"]

_RESAMPLES = 200


class Intervals(NamedTuple):
    """Bootstrap intervals over points: arrays (layers, 2) of lower and upper ends, per set."""

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
        intervals: of both, by resampling points. They tell how much the points disagree; no
            resampling tells of points that were not visited.
        ratios: per set, (points, layers): ||grad_i difference||_* / ||Gamma_i||, NaN outside of
            the set and where a layer did not move.
        duals: (points, layers): ||grad_i||_* at the points.
        confidence: of the intervals.
    """

    layers: tuple[str, ...]
    smooth: Smoothness
    generalized: Smoothness
    intervals: Intervals
    ratios: dict[ActiveSet, FloatArray]
    duals: FloatArray
    confidence: float

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
    estimates are monotone, as Lemma "smooth_subs" has them.

    Args:
        problem: the model, its loss and batches; they are left as they were.
        optimizer_settings: arguments of `DropMuon` after the model; `lr` is the radius of the step.
        sets: active sets, the progressive ones {s, ..., b-1} by default.
        points: steps of the run, each a point X.
        budget: seconds to spend, about; the run is shorter if it is over, one point at least.
        confidence: of the bootstrap intervals.
        seed: of the bootstrap.
        on_progress: called with the share done, from 0 to 1.
        clock: what to read seconds from.
    """
    _check(points, budget, confidence)
    tell = on_progress or (lambda share: None)
    start = clock()
    with problem.prepared(optimizer_settings) as optimizer:
        b = len(optimizer.layers)
        chosen = _chosen(sets, b)
        duals = np.zeros((points, b))
        ratios = {s: np.full((points, b), np.nan) for s in chosen}
        visited = 0
        while visited < points and (visited == 0 or clock() - start < budget):
            probe = Probe(problem, optimizer, visited)
            duals[visited] = probe.duals
            for n, active in enumerate(chosen):
                tell((visited + n / len(chosen)) / points)
                ratios[active][visited] = probe.ratios(active)
            probe.advance()
            visited += 1
        layers = optimizer.layers
    duals = duals[:visited]
    ratios = {s: values[:visited] for s, values in ratios.items()}
    smooth, generalized, intervals = summarize(duals, ratios, confidence, seed)
    tell(1.0)
    return SmoothnessEstimate(layers, smooth, generalized, intervals, ratios, duals, confidence)


def summarize(
    duals: FloatArray, ratios: Mapping[ActiveSet, FloatArray], confidence: float, seed: int
) -> tuple[Smoothness, Smoothness, Intervals]:
    """Envelopes of all points, and of resampled ones; the first row counts every point once."""
    n, b = duals.shape
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, np.full(n, 1.0 / n), size=_RESAMPLES)
    counts = np.concatenate([np.ones((1, n), dtype=np.int64), drawn])
    raw = {s: np.zeros((3, len(counts), b)) for s in ratios}
    for active, values in ratios.items():
        for i in active:
            seen = np.isfinite(values[:, i])
            if seen.any():
                r, d, c = values[seen, i], duals[seen, i], counts[:, seen]
                raw[active][0, :, i] = np.where(c > 0, r, 0.0).max(axis=1)
                raw[active][1:, :, i] = upper_envelopes(d, r, c)
    found = {s: np.zeros_like(table) for s, table in raw.items()}
    for active in raw:
        for smaller, table in raw.items():
            if set(smaller) <= set(active):
                np.maximum(found[active], table, out=found[active])
    best = [{s: table[k, 0] for s, table in found.items()} for k in range(3)]
    ends = [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0]
    intervals = Intervals(
        *({s: np.quantile(t[k, 1:], ends, axis=0).T for s, t in found.items()} for k in range(3))
    )
    return Smoothness(best[0]), Smoothness(best[1], best[2]), intervals


def _chosen(sets: Iterable[ActiveSet] | None, b: int) -> list[ActiveSet]:
    if sets is None:
        return [tuple(range(s, b)) for s in range(b)]
    found = list(dict.fromkeys(active_set("sets", each, b) for each in sets))
    if not found:
        raise ValueError("sets must not be empty, got none; leave it out for the progressive ones")
    return found


def _check(points: int, budget: float, confidence: float) -> None:
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise ValueError(f"points must be a whole number of at least 1, got {points!r}; give 12")
    if not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}; give 30.0")
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}; give 0.9")
