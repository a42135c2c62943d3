r"""What fewer points would have told, and from that how far off all points may be.

A constant is an upper end, and the largest of n ratios is below it. The plain bootstrap of a
maximum cannot tell by how much: no resample exceeds the sample, and it is inconsistent (Bickel and
Freedman, "Some asymptotic theory for the bootstrap", Ann. Statist. 9, 1981). Resamples of fewer
points are consistent (Bickel, Goetze and van Zwet, "Resampling fewer than n observations", Stat.
Sinica 7, 1997; for ends of distributions Loh, Ann. Statist. 12, 1984): how far m points fall short
of n stands for how far n fall short of the truth, here with m the root of n, at least 2.

By theory the difference shrinks from m to n points by (m/n)^(1/a), where the density of ratios
falls like the (a-1)-th power towards its end. a is unknown, and the factor is taken as 1, on the
safe side. Points are drawn for all layers and sets at once, so what they have in common stays so.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dropmuon.planning.constants import Table, completed, raised
from dropmuon.planning.envelope import upper_envelopes
from dropmuon.samplers.base import ActiveSet, FloatArray

__all__ = ["LEAST_POINTS", "Draws", "ends", "envelope_draws", "smooth_draws"]

LEAST_POINTS = 3
"""With fewer points, nothing is said of how far off constants and predictions are."""

Draws = dict[ActiveSet, FloatArray]
"""Per set, (1 + resamples, layers): what all points give, then what resampled ones do."""


def smooth_draws(ratios: Table, num_layers: int, resamples: int, seed: int) -> Draws:
    """L0 alone: the largest ratio, over all points and as resampled; monotone in the set."""
    points = len(next(iter(ratios.values())))
    counts = _counts(points, _size(points), resamples, seed)
    raw = {}
    for active, values in ratios.items():
        seen = np.nan_to_num(values, nan=0.0)
        raw[active] = np.where(counts[:, :, None] > 0, seen, 0.0).max(axis=1)
    return raised(completed(raw, num_layers))


def envelope_draws(
    duals: FloatArray, ratios: Table, resamples: int, seed: int
) -> tuple[Draws, Draws]:
    """L0 and L1 of the line above the ratios, over all points and as resampled; monotone.

    Resamples have one point more than for a maximum: one point shows no slope.
    """
    n, b = duals.shape
    counts = _counts(n, _size(n) + 1, resamples, seed)
    lines: tuple[Draws, Draws] = ({}, {})
    for active, values in ratios.items():
        both = np.zeros((2, len(counts), b))
        for i in active:
            seen = np.isfinite(values[:, i])
            if seen.any():
                both[:, :, i] = upper_envelopes(duals[seen, i], values[seen, i], counts[:, seen])
        for k in (0, 1):
            lines[k][active] = both[k]
    return raised(completed(lines[0], b)), raised(completed(lines[1], b))


def ends(draws: FloatArray, points: int, confidence: float) -> FloatArray:
    """Return (layers, 2) lower and upper ends of constants: quantiles of M_n + (M_n - M*_m).

    With fewer than `LEAST_POINTS` points they are 0 and infinity.
    """
    if points < LEAST_POINTS:
        return np.tile([0.0, math.inf], (draws.shape[1], 1))
    tails = [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0]
    low, high = np.quantile(np.maximum(2.0 * draws[0] - draws[1:], 0.0), tails, axis=0)
    return np.stack([np.minimum(low, draws[0]), np.maximum(high, draws[0])], axis=1)


def _size(points: int) -> int:
    return max(2, math.isqrt(points))


def _counts(points: int, size: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each point is taken: the first row all once, the others fewer at random."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(size, np.full(points, 1.0 / points), size=resamples)
    return np.concatenate([np.ones((1, points), dtype=np.int64), drawn])
