"""Optimal cutoff probabilities of progressive training in the smooth case, and linear programs.

The section "Randomized Progressive Training" of the smooth case turns the search for the best
probabilities into the linear program (eq. fl2)

    min_q  d_1 q_1 + ... + d_b q_b   s.t.  q >= 0,   sum_{s <= i} q_s / (2 L[i, s]) >= 1 for all i

with p = q / sum(q), and solves it by a recursion. The recursion does not depend on the costs d.
Its solution is the least feasible point in every cumulative sum q_1 + ... + q_i at once: pushing
mass from q_i to q_{i+1} leaves the later constraints valid (Lemma exchange) and the other
cumulative sums as they are. The objective is a non-negative combination of these sums whenever d
falls with the cutoff, so one point serves all costs, and constant or zero costs too.

For any finite list of active sets, the least total cost is such a program, too (eq. fl1 to fl2 for
progressive training, eq. fl2_partitioned for partitions):

    min_q  sum_S cost(S) q_S   s.t.  q >= 0,   sum_S weights[i, S] q_S >= 1 for every layer i

with weights[i, S] = 1{i in S} / (2 L_{i,S}): `solve_covering_program`.

Here and in all of `theory`, `L[i, s]` is the constant of layer i when the layers s, s+1, ... are
active. Layers are counted from 0, and entries above the diagonal are never read.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, linprog

from dropmuon.samplers.base import FloatArray
from dropmuon.samplers.schedules import Fixed
from dropmuon.theory.costs import Costs, numbers, tail_costs
from dropmuon.theory.smoothness import NonMonotoneWarning, lower_triangle

__all__ = [
    "ProgramSolution",
    "check_progressive_constants",
    "full_update_is_optimal",
    "matching_tails",
    "optimal_progressive",
    "progressive_cost",
    "progressive_weights",
    "solve_covering_program",
    "solve_linear_program",
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
    the theory: a `NonMonotoneWarning` is issued, or with `repair=True` every row is replaced by the
    nearest non-increasing one (least squares). Without repair the result may not be optimal.
    """
    constants = check_progressive_constants(L, repair=repair)
    scale = constants.max()
    scaled = constants / scale
    if not scaled[np.tri(len(scaled), dtype=bool)].all():
        raise ValueError(
            f"L must not span more than 300 orders of magnitude, got {constants.max():g} beside "
            f"{constants[constants > 0].min():g}; leave out layers that hardly matter"
        )
    inverse = np.zeros_like(scaled)
    np.divide(1.0, scaled, out=inverse, where=scaled > 0)
    q = np.zeros(len(scaled))
    for i in range(len(scaled)):
        residual = 1.0 - inverse[i, :i] @ q[:i]
        if residual > _HELD:
            q[i] = residual * scaled[i, i]
    return np.asarray(q / q.sum(), dtype=np.float64)


def full_update_is_optimal(L: npt.ArrayLike, *, repair: bool = False) -> bool:
    """Return whether updating all layers at every step is optimal among progressive samplers.

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
    """Return L as a float matrix with zeros above the diagonal, or raise ValueError.

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
    """Return d_j per cutoff, or raise ValueError if the costs are not of this many layers."""
    if costs.num_layers != count:
        raise ValueError(
            f"costs must be of {count} layers, got {costs.num_layers}; "
            "measure costs and constants on one model"
        )
    return tail_costs(costs)


@dataclass(frozen=True)
class ProgramSolution:
    """Optimal probabilities of the sets, and the optimal value, up to the factor of eq. costK.

    `multipliers[i]` is the dual value of layer i's constraint: by how much the cost falls per unit
    that the constraint is relaxed. The multipliers sum to `cost`, the certificate of optimality.
    """

    probabilities: FloatArray
    cost: float
    multipliers: FloatArray


def solve_linear_program(L: npt.ArrayLike, costs: Costs) -> ProgramSolution:
    """Solve eq. fl2, progressive training in the smooth case, by HiGHS.

    The recursion of `optimal_progressive` reaches the same optimum in O(b^2) operations. This
    program also serves constants that rise with the cutoff, for which the recursion has no proof.
    """
    constants = check_progressive_constants(L)
    tails = matching_tails(costs, len(constants))
    return solve_covering_program(progressive_weights(constants), tails)


def solve_covering_program(weights: npt.ArrayLike, set_costs: npt.ArrayLike) -> ProgramSolution:
    """Solve the program above for any list of sets, by HiGHS.

    `weights[i, k]` is 1 / (2 L_{i,S_k}) where layer i is in the k-th set, else 0; `set_costs[k]`
    is the cost of a step with that set.
    """
    matrix, prices = _check_program(weights, set_costs)
    uncovered = np.flatnonzero(~(matrix > 0).any(axis=1))
    if uncovered.size:
        raise ValueError(
            f"weights must be positive somewhere in every row, got none for layers "
            f"{uncovered.tolist()}; add an active set that contains them"
        )
    units = _units(matrix)
    price = float((prices * units).max())
    result = linprog(
        prices * units / price, A_ub=-matrix * units, b_ub=-np.ones(len(matrix)), method="highs"
    )
    if result.status != 0:
        raise RuntimeError(
            f"HiGHS found no optimum, though there is one: {result.message}; "
            "weights and set_costs differ too much in size"
        )
    q = units * np.maximum(np.asarray(result.x, dtype=np.float64), 0.0)
    return ProgramSolution(
        probabilities=q / q.sum(),
        cost=float(prices @ q) / float((matrix @ q).min()),
        multipliers=-np.asarray(result.ineqlin.marginals, dtype=np.float64) * price,
    )


def _units(weights: FloatArray) -> FloatArray:
    """Return a unit for the mass on each set, in which its weights lie around 1.

    HiGHS treats numbers below 1e-9 as zero and rejects those above 1e15. In one unit for all sets,
    constants that differ that much would change the program.
    """
    largest = weights.max(axis=0)
    least = np.where(weights > 0, weights, np.inf).min(axis=0)
    largest[largest == 0] = least[largest == 0] = largest.max()
    return np.asarray(1.0 / (np.sqrt(least) * np.sqrt(largest)), dtype=np.float64)


def _check_program(
    weights: npt.ArrayLike, set_costs: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return the program's data as float arrays, or raise ValueError."""
    matrix, prices = numbers("weights", weights), numbers("set_costs", set_costs)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(
            f"weights must be a matrix of layers by sets, got shape {matrix.shape}; "
            "give one row per layer and one column per set"
        )
    if prices.shape != matrix.shape[1:]:
        raise ValueError(
            f"set_costs must have one entry per column of weights, got shape {prices.shape} "
            f"for {matrix.shape[1]} columns; give the cost of a step with each set"
        )
    wrong = ~(np.isfinite(matrix) & (matrix >= 0))
    if wrong.any():
        i, k = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"weights must be finite and non-negative, got {matrix[i, k]} at index {(i, k)}; "
            "use 0 where the set does not hold the layer"
        )
    if not np.isfinite(prices).all() or (prices < 0).any() or not prices.any():
        raise ValueError(
            f"set_costs must be finite, non-negative and not all zero, got {prices}; "
            "measure them again"
        )
    return matrix, prices
