"""Isotonic regression over sets ordered by inclusion: the order, and the projection onto it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, nnls

from dropmuon.samplers.base import FloatArray

__all__ = ["covering_pairs", "nearest_monotone"]

_ITERATIONS_PER_PAIR = 30


def covering_pairs(members: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the rows (small, large) of sets with small < large and no given set in between.

    `members` has a row per set and a column per layer. These pairs generate the whole order.
    """
    sizes = members.sum(axis=1)
    order = np.argsort(sizes, kind="stable")
    ranked = members[order]
    if not (ranked[:-1] & ~ranked[1:]).any():  # a chain
        return np.stack([order[:-1], order[1:]], axis=1)
    pairs: list[tuple[int, int]] = []
    for large in range(len(order)):
        below = int(np.searchsorted(sizes[order], sizes[order[large]]))
        inside = (~(ranked[:below] & ~ranked[large]).any(axis=1)).nonzero()[0][::-1]
        while inside.size:  # the largest that is left has nothing in between
            small, rest = inside[0], inside[1:]
            pairs.append((int(order[small]), int(order[large])))
            inside = rest[(ranked[rest] & ~ranked[small]).any(axis=1)]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)


def nearest_monotone(values: FloatArray, pairs: npt.NDArray[np.intp]) -> FloatArray:
    """Return the x nearest to `values` with x[small] <= x[large] for each of the pairs.

    Monotone values come back as they are. Chains are pooled; other orders are projected by the
    dual problem: x = y + A^T z with z >= 0 nearest to A^T z = -y, where A x >= 0 is the order.
    """
    small, large = pairs[:, 0], pairs[:, 1]
    if not (values[small] > values[large]).any():
        return values.copy()
    n = values.size
    if len(pairs) == n - 1 and _is_path(small, large):
        last = np.setdiff1d(large, small)[0]
        before = dict(zip(large.tolist(), small.tolist(), strict=True))
        chain = [int(last)]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        result = np.empty(n)
        result[chain[::-1]] = isotonic_regression(values[chain[::-1]]).x
    else:
        result = _projected(values, small, large)
    return _settled(result, small, large)


def _is_path(small: npt.NDArray[np.intp], large: npt.NDArray[np.intp]) -> bool:
    """Whether no set has two neighbours on one side."""
    return np.unique(small).size == small.size and np.unique(large).size == large.size


def _projected(
    values: FloatArray, small: npt.NDArray[np.intp], large: npt.NDArray[np.intp]
) -> FloatArray:
    """Project onto the cone of monotone vectors."""
    m, scale = small.size, float(values.max())
    rows = np.zeros((m, values.size))
    rows[np.arange(m), large] = 1.0
    rows[np.arange(m), small] = -1.0
    z, _ = nnls(rows.T, -values / scale, maxiter=_ITERATIONS_PER_PAIR * m)
    nearest: FloatArray = values + scale * (rows.T @ z)
    return nearest


def _settled(
    values: FloatArray, small: npt.NDArray[np.intp], large: npt.NDArray[np.intp]
) -> FloatArray:
    """Lift larger sets by the rounding errors that are left, until the order holds exactly."""
    result = np.maximum(values, 0.0)
    while (result[small] > result[large]).any():
        np.maximum.at(result, large, result[small])
    return result
