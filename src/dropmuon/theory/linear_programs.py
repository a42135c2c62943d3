"""Linear programs: the general solvers behind the closed forms of the smooth case.

For any finite list of active sets, the least total cost in the smooth case is a linear program in
q = p / t (eq. fl1 to fl2 for progressive training, eq. fl2_partitioned for partitions):

    min_q  sum_S cost(S) q_S   s.t.  q >= 0,   sum_S weights[i, S] q_S >= 1 for every layer i

with weights[i, S] = 1{i in S} / (2 L_{i,S}).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import Costs, numbers
from dropmuon.theory.progressive import (
    check_progressive_constants,
    matching_tails,
    progressive_weights,
)

__all__ = ["ProgramSolution", "solve_covering_program", "solve_linear_program"]


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
    """Solve the program of this module for any list of sets, by HiGHS.

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
