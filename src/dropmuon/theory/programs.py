"""Linear programs and Dinkelbach's algorithm: the general solvers behind the closed forms.

For any finite list of active sets, the least total cost in the smooth case is a linear program in
q = p / t (eq. fl1 to fl2 for progressive training, eq. fl2_partitioned for partitions):

    min_q  sum_S cost(S) q_S   s.t.  q >= 0,   sum_S weights[i, S] q_S >= 1 for every layer i

with weights[i, S] = 1{i in S} / (2 L_{i,S}). The same ratio, expected cost over the progress of the
slowest layer, is what Dinkelbach's algorithm minimises for any parametric family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from dropmuon.theory.costs import Costs
from dropmuon.theory.distributions import FloatArray
from dropmuon.theory.progressive import (
    check_progressive_constants,
    matching_tails,
    progressive_progress,
)

__all__ = [
    "InfeasibleProgramError",
    "ProgramSolution",
    "RatioSolution",
    "dinkelbach",
    "progressive_by_dinkelbach",
    "solve_covering_program",
    "solve_linear_program",
]

Point = TypeVar("Point")


class InfeasibleProgramError(ValueError):
    """No probabilities satisfy the program: some layer would never move."""


@dataclass(frozen=True)
class ProgramSolution:
    """Optimal probabilities of the sets, and the optimal value, up to the factor of eq. costK.

    `multipliers[i]` is the dual value of layer i's constraint: by how much the cost falls per unit
    that the constraint is relaxed. The multipliers sum to `cost`, the certificate of optimality.
    """

    probabilities: FloatArray
    cost: float
    multipliers: FloatArray


@dataclass(frozen=True)
class RatioSolution(Generic[Point]):
    """A minimiser of a ratio, its value, and the inner minimisations that it took."""

    point: Point
    value: float
    iterations: int


def solve_linear_program(L: npt.ArrayLike, costs: Costs) -> ProgramSolution:
    """Solve eq. fl2, progressive training in the smooth case, by HiGHS.

    The recursion of `optimal_progressive` reaches the same optimum in O(b^2) operations. This
    program also serves constants that rise with the cutoff, for which the recursion has no proof.
    """
    constants = check_progressive_constants(L)
    tails = matching_tails(costs, len(constants))
    weights = np.zeros_like(constants)
    np.divide(0.5, constants, out=weights, where=constants > 0)
    return solve_covering_program(weights, tails)


def solve_covering_program(weights: npt.ArrayLike, set_costs: npt.ArrayLike) -> ProgramSolution:
    """Solve the program of this module for any list of sets, by HiGHS.

    `weights[i, k]` is 1 / (2 L_{i,S_k}) where layer i is in the k-th set, else 0; `set_costs[k]`
    is the cost of a step with that set.
    """
    matrix, prices = _check_program(weights, set_costs)
    uncovered = np.flatnonzero(~(matrix > 0).any(axis=1))
    if uncovered.size:
        raise InfeasibleProgramError(
            f"weights must be positive somewhere in every row, got none for layers "
            f"{uncovered.tolist()}; add an active set that contains them"
        )
    unit, price = float(matrix.max()), float(prices.max())
    result = linprog(
        prices / price, A_ub=-matrix / unit, b_ub=-np.ones(len(matrix)), method="highs"
    )
    if result.status == 2:
        raise InfeasibleProgramError(f"the program has no feasible point: {result.message}")
    if result.status != 0:
        raise RuntimeError(f"HiGHS found no optimum: {result.message}")
    q = np.maximum(np.asarray(result.x, dtype=np.float64), 0.0)
    factor = price / unit
    return ProgramSolution(
        probabilities=q / q.sum(),
        cost=float(result.fun) * factor,
        multipliers=-np.asarray(result.ineqlin.marginals, dtype=np.float64) * factor,
    )


def dinkelbach(
    numerator: Callable[[Point], float],
    denominator: Callable[[Point], float],
    minimise: Callable[[float], Point],
    start: Point,
    *,
    tolerance: float = 1e-12,
    max_iterations: int = 100,
) -> RatioSolution[Point]:
    """Minimise numerator(x) / denominator(x) over a family, with a positive denominator.

    Dinkelbach's algorithm: with the ratio z of the best point so far, `minimise(z)` returns a point
    of the family that minimises numerator - z * denominator. The ratio falls at every step, and z
    is the optimum once that minimum is zero. The result is as global as `minimise` is.
    """
    best, value = start, _ratio(numerator(start), denominator(start))
    for iteration in range(1, max_iterations + 1):
        point = minimise(value)
        above, below = numerator(point), denominator(point)
        fall = value * below - above
        if not fall > tolerance * abs(above):
            return RatioSolution(best, value, iteration)
        best, value = point, _ratio(above, below)
    raise RuntimeError(
        f"dinkelbach did not converge in max_iterations={max_iterations}; the last ratio is {value}"
    )


def progressive_by_dinkelbach(L: npt.ArrayLike, costs: Costs) -> RatioSolution[FloatArray]:
    """Minimise eq. costK over cutoff probabilities by Dinkelbach's algorithm, from full updates.

    For a fixed ratio z the inner problem is the linear program
    min d.p - z t over the simplex and t <= sum_{s <= i} p_s / (2 L[i, s]) for all i.
    """
    constants = check_progressive_constants(L)
    tails = matching_tails(costs, len(constants))
    scale = float(constants.max())
    scaled = constants / scale
    b = len(scaled)
    weights = np.zeros_like(scaled)
    np.divide(0.5, scaled, out=weights, where=scaled > 0)
    above = np.hstack([-weights, np.ones((b, 1))])
    simplex = np.append(np.ones(b), 0.0)[np.newaxis]

    def minimise(ratio: float) -> FloatArray:
        size = max(ratio, float(tails.max()))
        objective = np.append(tails, -ratio) / size
        result = linprog(objective, above, np.zeros(b), simplex, np.ones(1), method="highs")
        if result.status != 0:
            raise RuntimeError(f"HiGHS found no optimum of the inner program: {result.message}")
        p = np.maximum(np.asarray(result.x[:b], dtype=np.float64), 0.0)
        return np.asarray(p / p.sum(), dtype=np.float64)

    start = np.zeros(b)
    start[0] = 1.0
    found = dinkelbach(
        lambda p: float(tails @ p),
        lambda p: float(progressive_progress(p, scaled).min()),
        minimise,
        start,
        tolerance=1e-9,
    )
    return RatioSolution(found.point, found.value * scale, found.iterations)


def _ratio(above: float, below: float) -> float:
    """Return the ratio at a point of the family, or say that it has none."""
    if not (np.isfinite(above) and np.isfinite(below) and below > 0):
        raise ValueError(
            f"the ratio needs a finite numerator and a positive finite denominator, "
            f"got {above} / {below}; start from a point at which every layer can move"
        )
    return above / below


def _check_program(
    weights: npt.ArrayLike, set_costs: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return the program's data as float arrays, or say what is wrong with it."""
    matrix = np.array(weights, dtype=np.float64)
    prices = np.array(set_costs, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"weights must be a matrix of layers by sets, got shape {matrix.shape}")
    if prices.shape != matrix.shape[1:]:
        raise ValueError(
            f"set_costs must have one entry per column of weights, got shape {prices.shape} "
            f"for {matrix.shape[1]} columns"
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ValueError("weights must be finite and non-negative")
    if not np.isfinite(prices).all() or (prices < 0).any() or not prices.any():
        raise ValueError(f"set_costs must be finite, non-negative and not all zero, got {prices}")
    return matrix, prices
