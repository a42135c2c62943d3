"""Optimal cutoff probabilities of randomized progressive training, smooth case.

The section "Randomized Progressive Training" of the smooth case turns the search for the best
probabilities into the linear program (eq. fl2)

    min_q  d_1 q_1 + ... + d_b q_b   s.t.  q >= 0,   sum_{s <= i} q_s / (2 L[i, s]) >= 1 for all i

with p = q / sum(q), and solves it by a recursion. The recursion never looks at the costs d. Its
solution is the least feasible point in every cumulative sum q_1 + ... + q_i at once: pushing mass
from q_i to q_{i+1} leaves the later constraints valid (Lemma exchange) and the other cumulative
sums as they are. The objective is a non-negative combination of these sums whenever d falls with
the cutoff, so one point serves all costs, and constant or zero costs too.

Here and in the whole room `L[i, s]` is the constant of layer i when the layers s, s+1, ... are
active. Layers count from 0, and entries above the diagonal are never read.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from dropmuon.samplers.base import FloatArray
from dropmuon.samplers.schedules import Fixed
from dropmuon.theory.costs import Costs, tail_costs
from dropmuon.theory.smoothness import NonMonotoneWarning, lower_triangle

__all__ = [
    "check_progressive_constants",
    "full_update_is_optimal",
    "matching_tails",
    "optimal_progressive",
    "progressive_cost",
    "progressive_weights",
]

_RISE = 1e-6
"""A relative rise of a row that still counts as rounding, not as non-monotone."""

_HELD = 1e-13
"""A constraint that misses by less than this share is held; keeps zeros of the solution exact."""


def optimal_progressive(L: npt.ArrayLike, *, repair: bool = False) -> FloatArray:
    """Return the probabilities of the cutoffs that minimise the total expected cost (eq. costK).

    The recursion at the end of the section "Randomized Progressive Training" (smooth case):

        q_1 = 2 L[1, 1],   q_i = 2 [r_i]_+ L[i, i],   r_i = 1 - sum_{s < i} q_s / (2 L[i, s])

    then p = q / sum(q). It takes O(b^2) operations. Constants that rise with the cutoff contradict
    the theory: a `NonMonotoneWarning` says so, or `repair=True` replaces every row by its nearest
    non-increasing one (least squares). Without repair the result is feasible but may not be best.
    """
    constants = check_progressive_constants(L, repair=repair)
    scale = constants.max()
    scaled = constants / scale
    inverse = np.zeros_like(scaled)
    np.divide(1.0, scaled, out=inverse, where=scaled > 0)
    q = np.zeros(len(scaled))
    for i in range(len(scaled)):
        residual = 1.0 - inverse[i, :i] @ q[:i]
        if residual > _HELD:
            q[i] = residual * scaled[i, i]
    return np.asarray(q / q.sum(), dtype=np.float64)


def full_update_is_optimal(L: npt.ArrayLike, *, repair: bool = False) -> bool:
    """Say whether updating all layers at every step is optimal among progressive samplers.

    Theorem rpt_p1: p = (1, 0, ..., 0) is optimal if and only if the first layer's constant under
    full updates is the largest of all, L[1, 1] = max_i L[i, 1].
    """
    constants = check_progressive_constants(L, repair=repair)
    return bool(constants[0, 0] >= constants[:, 0].max() * (1.0 - _HELD))


def progressive_cost(probabilities: npt.ArrayLike, L: npt.ArrayLike, costs: Costs) -> float:
    """Return the total expected cost of these cutoff probabilities, up to a common factor.

    Eq. costK: the expected cost of a step over min_i sum_{s <= i} p_s / (2 L[i, s]). It is
    infinite where some layer never moves, that is where p_1 = 0.
    """
    constants = check_progressive_constants(L)
    tails = matching_tails(costs, len(constants))
    p = Fixed(probabilities)(len(constants))
    slowest = float((progressive_weights(constants) @ p).min())
    return float(tails @ p) / slowest if slowest > 0 else float("inf")


def progressive_weights(L: FloatArray) -> FloatArray:
    """Return delta[i, s] = 1 / (2 L[i, s]) where s <= i, else 0 (eq. fl2). L is taken as valid."""
    weights = np.zeros_like(L)
    np.divide(0.5, L, out=weights, where=np.tri(len(L), dtype=bool))
    return weights


def check_progressive_constants(
    L: npt.ArrayLike, *, name: str = "L", repair: bool = False, positive: bool = True
) -> FloatArray:
    """Return L as a float matrix with zeros above the diagonal, or say what is wrong with it.

    Every row must be non-increasing in the cutoff (eq. orderofdelta). If one is not, warn, or with
    `repair` replace it. `positive=False` admits zeros.
    """
    matrix = lower_triangle(name, L, positive=positive)
    lower = np.tri(len(matrix), dtype=bool)
    rises = lower[:, 1:] & (matrix[:, 1:] > matrix[:, :-1] * (1.0 + _RISE))
    if rises.any():
        i, s = map(int, np.argwhere(rises)[0])
        if not repair:
            warnings.warn(
                f"{name} must not rise with the cutoff, got {name}[{i}, {s}] = {matrix[i, s]} < "
                f"{name}[{i}, {s + 1}] = {matrix[i, s + 1]}; the result may not be optimal, "
                "repair=True takes the nearest monotone constants",
                NonMonotoneWarning,
                stacklevel=3,
            )
        else:
            for row in np.flatnonzero(rises.any(axis=1)):
                fit = isotonic_regression(matrix[row, : row + 1], increasing=False)
                matrix[row, : row + 1] = fit.x
    return matrix


def matching_tails(costs: Costs, count: int) -> FloatArray:
    """Return d_j per cutoff, or say that the costs are not of this many layers."""
    if costs.num_layers != count:
        raise ValueError(
            f"costs must be of {count} layers, got {costs.num_layers}; "
            "measure costs and constants on one model"
        )
    return tail_costs(costs)
