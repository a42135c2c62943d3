"""The line above all points with the least total excess: a linear program with two unknowns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dropmuon.samplers.base import FloatArray

__all__ = ["upper_envelopes"]

_CHUNK = 2_000_000
_TIE = 1e-12


def upper_envelopes(
    duals: FloatArray, ratios: FloatArray, counts: npt.NDArray[np.int64]
) -> FloatArray:
    """Return the (2, R) constants L0 and L1 of R weightings `counts` (R, n) of n points.

    Minimises sum_k c_k (L0 + L1 d_k - r_k) over L0, L1 >= 0 with L0 + L1 d_k >= r_k wherever
    c_k > 0. For a slope L1 the best L0 is max(0, max_k r_k - L1 d_k), so the excess is a convex,
    piecewise linear function of the slope alone, least at 0, at some r_k / d_k or at the slope
    between two points. Of equally good slopes the smallest is taken: L1 only where it is seen.
    """
    slopes = _slopes(duals, ratios)
    needed = ratios - slopes[:, None] * duals
    rows = max(1, _CHUNK // needed.size)
    parts = [
        _best(slopes, needed, duals, counts[k : k + rows]) for k in range(0, len(counts), rows)
    ]
    return np.concatenate(parts, axis=1)


def _slopes(duals: FloatArray, ratios: FloatArray) -> FloatArray:
    """Every slope at which the excess may be least, ascending."""
    i, j = np.triu_indices(duals.size, k=1)
    rise, run = ratios[i] - ratios[j], duals[i] - duals[j]
    distinct = np.abs(run) > _TIE * np.abs(duals).max(initial=0.0)
    positive = duals > 0
    between = rise[distinct] / run[distinct]
    found = np.concatenate([[0.0], between, ratios[positive] / duals[positive]])
    return np.unique(found[np.isfinite(found) & (found >= 0)])


def _best(
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
