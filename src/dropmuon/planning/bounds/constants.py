r"""Smoothness constants from measured ratios: complete, monotone, with intervals.

A constant is an upper end, and the largest of n ratios is below it. The plain bootstrap of a
maximum cannot tell by how much: no resample exceeds the sample, and it is inconsistent (Bickel and
Freedman, "Some asymptotic theory for the bootstrap", Ann. Statist. 9, 1981). Resamples of fewer
points are consistent (Bickel, Goetze and van Zwet, "Resampling fewer than n observations", Stat.
Sinica 7, 1997; for ends of distributions Loh, Ann. Statist. 12, 1984): the amount by which m points
fall short of n estimates the amount by which n fall short of the truth, here with m the root of n,
at least 2.

In theory the difference shrinks from m to n points by (m/n)^(1/a), where the density of ratios
falls like the (a-1)-th power towards its end. a is unknown, and the factor is taken as 1, which is
the cautious choice. The same points are drawn for all layers and sets, so that what they have in
common is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dropmuon.planning.bounds.probe import suffixes
from dropmuon.samplers import ActiveSet
from dropmuon.samplers.base import FloatArray
from dropmuon.theory import Smoothness
from dropmuon.theory.costs import members
from dropmuon.theory.smoothness import covering_pairs

__all__ = [
    "FLOOR",
    "LEAST_POINTS",
    "Resampled",
    "check_confidence",
    "floor_of",
    "floored",
    "interval_ends",
    "positive_smoothness",
    "resampled_generalized",
    "resampled_smooth",
    "upper_envelopes",
]

Table = Mapping[ActiveSet, FloatArray]
"""Numbers per set, with the layers along the last axis."""

Resampled = dict[ActiveSet, FloatArray]
"""Constants per set, of shape (1 + resamples, layers): those of all points come first."""

LEAST_POINTS = 3
"""With fewer points, the error of constants and predictions is unknown."""

FLOOR = 1e-2
"""The least constant, as a share of the largest: what is flat along a short run may be curved
elsewhere."""

_CHUNK = 2_000_000
_TIE = 1e-12


# Constants of all points and of resamples


def resampled_smooth(ratios: Table, num_layers: int, resamples: int, seed: int) -> Resampled:
    """Return the largest ratio of all points and of each resample, monotone in the set."""
    points = len(next(iter(ratios.values())))
    counts = _counts(points, _resample_size(points), resamples, seed)
    raw = {}
    for active, values in ratios.items():
        seen = np.nan_to_num(values, nan=0.0)
        raw[active] = np.where(counts[:, :, None] > 0, seen, 0.0).max(axis=1)
    return _monotone(_with_all_suffixes(raw, num_layers))


def resampled_generalized(
    duals: FloatArray, ratios: Table, resamples: int, seed: int
) -> tuple[Resampled, Resampled]:
    """Return L0 and L1 of the line above the ratios of all points and of each resample; monotone.

    Resamples have one point more than for a maximum, since one point shows no slope.
    """
    n, b = duals.shape
    counts = _counts(n, _resample_size(n) + 1, resamples, seed)
    lines: tuple[Resampled, Resampled] = ({}, {})
    for active, values in ratios.items():
        both = np.zeros((2, len(counts), b))
        for i in active:
            seen = np.isfinite(values[:, i])
            if seen.any():
                both[:, :, i] = upper_envelopes(duals[seen, i], values[seen, i], counts[:, seen])
        for k in (0, 1):
            lines[k][active] = both[k]
    l0, l1 = (_monotone(_with_all_suffixes(line, b)) for line in lines)
    return l0, l1


def interval_ends(constants: FloatArray, points: int, confidence: float) -> FloatArray:
    """Return (layers, 2) lower and upper ends of constants: quantiles of M_n + (M_n - M*_m).

    M_n is the first row of `constants`, of all points, and M*_m the others, of resamples. With
    fewer than `LEAST_POINTS` points the ends are 0 and infinity.
    """
    if points < LEAST_POINTS:
        return np.tile([0.0, math.inf], (constants.shape[1], 1))
    tails = [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0]
    shifted = np.maximum(2.0 * constants[0] - constants[1:], 0.0)
    low, high = np.quantile(shifted, tails, axis=0)
    return np.stack([np.minimum(low, constants[0]), np.maximum(high, constants[0])], axis=1)


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless the confidence of an interval is between 0 and 1."""
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}; give 0.9")


# Positive constants, as divisions need them


def positive_smoothness(l0: Table, l1: Table | None) -> Smoothness:
    """Make `Smoothness` of constants that are raised to a share `FLOOR` of the largest.

    Larger constants bound as well as the least ones do, so what is raised stays valid.
    """
    sets = list(l0)
    inside = members(sets, len(l0[sets[0]]))

    def raised(table: Table) -> dict[ActiveSet, FloatArray]:
        return dict(zip(sets, floored(np.stack(list(table.values())), inside), strict=True))

    return Smoothness(raised(l0), None if l1 is None else raised(l1))


def floored(table: FloatArray, inside: npt.NDArray[np.bool_], share: float = FLOOR) -> FloatArray:
    """Raise an array (..., sets, layers) to a share of its largest entry; 0 outside the sets."""
    floor = floor_of(table.max(axis=(-2, -1), keepdims=True), share)
    return np.where(inside, np.maximum(table, floor), 0.0)


def floor_of(largest: npt.ArrayLike, share: float = FLOOR) -> FloatArray:
    """Return the least constant allowed for this largest one; 1 where the largest is 0."""
    most = np.asarray(largest, dtype=np.float64)
    return np.where(most > 0, share * most, 1.0)


# The line above all points with the least total excess: a linear program with two unknowns


def upper_envelopes(
    duals: FloatArray, ratios: FloatArray, counts: npt.NDArray[np.int64]
) -> FloatArray:
    """Return the (2, R) constants L0 and L1 of R weightings `counts` (R, n) of n points.

    Minimises sum_k c_k (L0 + L1 d_k - r_k) over L0, L1 >= 0 with L0 + L1 d_k >= r_k wherever
    c_k > 0. For a slope L1 the best L0 is max(0, max_k r_k - L1 d_k), so the excess is a convex,
    piecewise linear function of the slope alone, least at 0, at some r_k / d_k or at the slope
    between two points. Of equally good slopes the smallest is taken: L1 only where it shows.
    """
    slopes = _candidate_slopes(duals, ratios)
    needed = ratios - slopes[:, None] * duals
    rows = max(1, _CHUNK // needed.size)
    parts = [
        _best_lines(slopes, needed, duals, counts[k : k + rows])
        for k in range(0, len(counts), rows)
    ]
    return np.concatenate(parts, axis=1)


def _candidate_slopes(duals: FloatArray, ratios: FloatArray) -> FloatArray:
    """Return every slope at which the excess may be least, ascending."""
    i, j = np.triu_indices(duals.size, k=1)
    rise, run = ratios[i] - ratios[j], duals[i] - duals[j]
    distinct = np.abs(run) > _TIE * np.abs(duals).max(initial=0.0)
    positive = duals > 0
    between = rise[distinct] / run[distinct]
    found = np.concatenate([[0.0], between, ratios[positive] / duals[positive]])
    return np.unique(found[np.isfinite(found) & (found >= 0)])


def _best_lines(
    slopes: FloatArray, needed: FloatArray, duals: FloatArray, counts: npt.NDArray[np.int64]
) -> FloatArray:
    taken = np.where(counts[:, None, :] > 0, needed, 0.0)
    l0 = taken.max(axis=2, initial=0.0)
    l0[l0 <= _TIE * np.abs(needed[0]).max(initial=0.0)] = 0.0
    total = counts.sum(axis=1)
    mean = counts @ duals / np.maximum(total, 1)
    value = l0 + mean[:, None] * slopes
    least = value.min(axis=1, keepdims=True)
    pick = (value <= least * (1.0 + _TIE)).argmax(axis=1)
    return np.stack([np.take_along_axis(l0, pick[:, None], axis=1)[:, 0], slopes[pick]])


# Shared steps


def _with_all_suffixes(table: Table, num_layers: int) -> dict[ActiveSet, FloatArray]:
    """Add suffixes that were not measured, with the constants of the next larger measured one.

    A larger set has larger constants (Lemma "smooth_subs"), so these are valid, if not the least.
    """
    found, last = dict(table), None
    for active in suffixes(num_layers):
        if active in table:
            last = table[active]
        elif last is not None:
            found[active] = np.where(np.isin(np.arange(num_layers), active), last, 0.0)
    return found


def _monotone(table: Table) -> dict[ActiveSet, FloatArray]:
    """Raise the constants of each set to those of its subsets (Lemma "smooth_subs")."""
    sets = list(table)
    found = {active: values.copy() for active, values in table.items()}
    inside = members(sets, 1 + max(active[-1] for active in sets))
    pairs = [(sets[small], sets[large]) for small, large in covering_pairs(inside).tolist()]
    for small, large in sorted(pairs, key=lambda pair: len(pair[1])):
        np.maximum(found[large], found[small], out=found[large])
    return found


def _resample_size(points: int) -> int:
    return max(2, math.isqrt(points))


def _counts(points: int, size: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    """Return how often each point is taken: in the first row once, in the others at random."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(size, np.full(points, 1.0 / points), size=resamples)
    return np.concatenate([np.ones((1, points), dtype=np.int64), drawn])
