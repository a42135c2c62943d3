"""The Polar Express: at each step, the best polynomial for the remaining interval.

Amsel et al. 2025, arXiv 2505.16932. `PolarExpress` in `orthogonalizers` applies them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dropmuon.norms.newton_schulz import Polynomial

__all__ = ["best_quintic", "polar_express_coefficients"]

_CUSHION = 0.02407327424182761  # the published value
_CONVERGED = 5e-6
_ONE: Polynomial = (15 / 8, -10 / 8, 3 / 8)  # the limit of the best quintics on [l, u] -> {1}


@lru_cache(maxsize=64)
def polar_express_coefficients(
    steps: int, lower: float = 1e-3, safety: float = 1.0
) -> tuple[Polynomial, ...]:
    """Return (a, b, c) of each step, for singular values in [`lower`, 1].

    A small singular value must not be lifted at the expense of values close to the upper end u:
    the quintic is fitted to [max(l, 0.024 u), u] and then rescaled so that the images of l and u
    lie symmetrically about one (the cushion and the recentering of the paper). With `safety` s the
    polynomial is p(x / s), except for the limit (15, -10, 3) / 8, which needs none.
    """
    low, high = lower, 1.0
    found: list[Polynomial] = []
    for _ in range(steps):
        if low >= (1.0 - _CONVERGED) * high:
            found.append(_ONE)
            continue
        a, b, c = best_quintic(max(low, _CUSHION * high), high)
        recenter = 2.0 / sum(a * x + b * x**3 + c * x**5 for x in (low, high))
        a, b, c = recenter * a, recenter * b, recenter * c
        found.append((a / safety, b / safety**3, c / safety**5))
        low = a * low + b * low**3 + c * low**5
        high = 2.0 - low
    return tuple(found)


def best_quintic(low: float, high: float) -> tuple[float, float, float]:
    """Return the odd quintic closest to one on [low, high] in the maximum norm, by Remez exchange.

    Its error takes its extreme values, with alternating signs, at `low`, at the two stationary
    points and at `high`. Solve for coefficients and error with guesses of the stationary points,
    move the guesses to where the derivative is zero, and repeat until the error stops changing.
    """
    inside: NDArray[np.float64] = low + (high - low) * np.array([0.25, 0.75])
    error = np.inf
    a = b = c = 0.0
    for _ in range(100):
        points = np.concatenate([[low], inside, [high]])
        system = np.stack([points, points**3, points**5, [1.0, -1.0, 1.0, -1.0]], axis=1)
        a, b, c, level = (float(v) for v in np.linalg.solve(system, np.ones(4)))
        if abs(level - error) <= 1e-15:
            break
        error = level
        root = np.sqrt(9 * b**2 - 20 * a * c)
        inside = np.sqrt((-3 * b + np.array([-root, root])) / (10 * c))
    return a, b, c
