"""How many times the cost the baseline needs for the quality that another method reaches.

Every method is known at some budgets, its rungs: a cost and a quality per seed. Means over seeds
make a curve of the best quality at any cost up to a given one, since a budget need not be spent:
where more training overfits, less of it counts. Between rungs it is a straight line in the
logarithm of cost. The distance is the horizontal gap between two such curves at one quality, as a
ratio of costs.

Where the baseline's curve never reaches that quality, or starts above it, the distance is known to
lie beyond a bound only; it is then an interval, open to one side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit

__all__ = ["Distance", "Points", "best_so_far", "cost_to_reach", "distances"]

FloatArray = npt.NDArray[np.float64]

_RESAMPLES = 4000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Points:
    """What one method cost and reached: arrays of shape (seeds, rungs); more quality is better."""

    cost: FloatArray
    quality: FloatArray

    def __post_init__(self) -> None:
        if self.cost.ndim != 2 or self.cost.shape != self.quality.shape or not self.cost.size:
            raise ValueError(
                "cost and quality must be arrays of one shape, (seeds, rungs), got "
                f"{self.cost.shape} and {self.quality.shape}"
            )
        if not (np.isfinite(self.cost).all() and (self.cost > 0).all()):
            raise ValueError("cost must be positive and finite")
        if not np.isfinite(self.quality).all():
            raise ValueError("quality must be finite; give a run that diverged the worst value")


@dataclass(frozen=True)
class Distance:
    """How many times the method's cost the baseline needs, at the quality of one rung.

    Attributes:
        quality: the method's best up to that rung.
        cost: what the method needs for it.
        least: the ratio, or a bound that it exceeds if `most` is infinite.
        most: the ratio again, or a bound that it stays below if `least` is 0.
        low: lower end of the bootstrap interval over seeds, None for one seed.
        high: its upper end, infinite where too few resamples have the curves overlap.
    """

    quality: float
    cost: float
    least: float
    most: float
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float | None:
        """The ratio of costs, None where only a bound is known."""
        return self.least if self.least == self.most else None


def distances(method: Points, baseline: Points) -> list[Distance]:
    """Return the distance from a method to the baseline at every rung of the method.

    The interval resamples seeds, the same ones for both methods and at all rungs. The ends are
    expanded percentiles, which are as far out as Student's t for this number of seeds: plain ones
    are too narrow for the few seeds that a race has (Hesterberg, "What Teachers Should Know About
    the Bootstrap", 2015, section 4.5).
    """
    seeds = len(method.cost)
    if seeds != len(baseline.cost):
        raise ValueError(
            f"method and baseline must have the same seeds, got {seeds} and {len(baseline.cost)}"
        )
    once = np.ones((1, seeds))
    quality, own, least, most = _gaps(method, baseline, once)
    low = high = np.full(quality.shape[1], math.nan)
    if seeds > 1:
        draws = np.random.default_rng(0).multinomial(seeds, once[0] / seeds, size=_RESAMPLES)
        *_, lows, highs = _gaps(method, baseline, draws.astype(np.float64))
        tail = _tail(seeds)
        low = np.quantile(lows, tail, axis=0, method="lower")
        high = np.quantile(highs, 1 - tail, axis=0, method="higher")
    return [
        Distance(
            quality=float(quality[0, rung]),
            cost=math.exp(own[0, rung]),
            least=float(least[0, rung]),
            most=float(most[0, rung]),
            low=None if seeds == 1 else float(low[rung]),
            high=None if seeds == 1 else float(high[rung]),
        )
        for rung in range(quality.shape[1])
    ]


def best_so_far(quality: FloatArray) -> FloatArray:
    """Return the best quality up to every rung, along the last axis."""
    return np.maximum.accumulate(quality, -1)


def cost_to_reach(
    quality: FloatArray, cost: FloatArray, curve: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return between which logarithms of cost a curve reaches a quality; equal if it is known.

    `cost` holds logarithms, ascending along the last axis as `curve` does; `quality` has one value
    per curve. A quality beyond the curve is reached before its first point, or after its last.
    """
    found = _crossing(quality, cost, curve, (curve < quality[..., None]).sum(-1))
    below, above = quality < curve[..., 0], quality > curve[..., -1]
    return np.where(below, -math.inf, found), np.where(above, math.inf, found)


def _crossing(
    quality: FloatArray, cost: FloatArray, curve: FloatArray, place: npt.NDArray[np.int_]
) -> FloatArray:
    """Return where the line from point `place - 1` to `place` has the quality; ends are kept."""
    count = curve.shape[-1]
    after = np.clip(place, 0, count - 1)[..., None]
    before = np.clip(place - 1, 0, count - 1)[..., None]
    x0, x1 = (np.take_along_axis(cost, at, -1)[..., 0] for at in (before, after))
    y0, y1 = (np.take_along_axis(curve, at, -1)[..., 0] for at in (before, after))
    rise = np.where(y1 > y0, y1 - y0, 1.0)
    share = np.where(y1 > y0, (quality - y0) / rise, 0.0)
    crossing: FloatArray = x0 + share * (x1 - x0)
    return crossing


def _gaps(
    method: Points, baseline: Points, counts: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return quality, logarithm of cost, and both bounds of the ratio: a row per resample.

    `counts` says how often a resample has each seed.
    """
    cost, curve, rungs = _curve(method, counts)
    base_cost, base_curve, _ = _curve(baseline, counts)
    found = []
    for rung in range(curve.shape[-1]):
        quality = np.take_along_axis(curve, rungs[:, rung : rung + 1], -1)[:, 0]
        own, _ = cost_to_reach(quality, cost, curve)
        least, most = cost_to_reach(quality, base_cost, base_curve)
        found.append((quality, own, np.exp(least - own), np.exp(most - own)))
    quality, own, least, most = (np.stack(each, axis=-1) for each in zip(*found, strict=True))
    return quality, own, least, most


def _curve(
    points: Points, counts: FloatArray
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.int_]]:
    """Return logarithms of mean costs, ascending, the curve, and the place of every rung."""
    seeds = len(points.cost)
    cost, quality = counts @ points.cost / seeds, counts @ points.quality / seeds
    order = np.argsort(cost, axis=-1, kind="stable")
    ascending = np.take_along_axis(cost, order, -1)
    curve = best_so_far(np.take_along_axis(quality, order, -1))
    return np.log(ascending), curve, np.argsort(order, axis=-1, kind="stable")


def _tail(seeds: int) -> float:
    """Return the share of resamples beyond each end of the interval."""
    quantile = float(stdtrit(seeds - 1, (1 + _CONFIDENCE) / 2))
    return float(ndtr(-quantile * math.sqrt(seeds / (seeds - 1))))
