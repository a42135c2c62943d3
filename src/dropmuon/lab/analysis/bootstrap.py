"""Percentile bootstrap of means over seeds, the same in every call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["band", "interval"]

FloatArray = npt.NDArray[np.float64]

_RESAMPLES = 2000
_CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Where the mean lies; nothing for fewer than two values."""
    if len(values) < 2:
        return None, None
    low, high = band(np.asarray(values, dtype=np.float64)[:, None])
    return float(low[0]), float(high[0])


def band(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where the mean over the first axis lies, column by column."""
    n = len(rows)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(counts @ rows / n, [tail, 1 - tail], axis=0)
    return low, high
