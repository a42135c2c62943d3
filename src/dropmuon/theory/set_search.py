"""Optimal probabilities of any list of sets, in every regime: a search, and a bound on its gap.

For progressive sets and for partitions, `progressive`, `generalized` and `partitions` have better:
closed forms. This is for all else: windows, blocks that overlap, and the stochastic regime.

*The bounds.* Write d_S for the cost of a step, Q_i = P(i in S), E_i for E[L1_{i,S} 1{i in S}] and
l_i for the least L1_{i,S}. Since E_i >= l_i Q_i:

    1/eps       K >= max_i l_i / Q_i, and min_p (d.p) max_i l_i / Q_i =: V is a linear program in
                q = p max_i l_i / Q_i, namely d.q subject to sum_{S with i} q_S >= l_i;
    1/eps^2     K is the above times sum_i (w_i^2 E[L0] / Q_i^2) / min_j w_j
                >= sum_i w_i E[L0] / Q_i^2 = sum_i E[L0] / E[L1] >= sum_i min_S L0/L1, so the cost
                is at least V times that sum;
    stochastic  let s = min_i Q_i eta_i of the radii taken. eta_i <= 1 gives s <= Q_i, and the
                condition on eta_i gives s^2 E[max_i L1] <= kappa Q_j for all j, where kappa is the
                least rho_low_i / (16 rho_high_i l_i). The least price d.p of such p is a linear
                program D(s). As Q_i eta_i >= s, the noise term is at least 2 s sum_i rho_high_i
                sigma_i and the drift at least s^2 sum_i 4 (rho_high_i / rho_low_i) min_S L0_{i,S},
                so K >= (3 gap / s + drift / s + noise / s)^4. Between two s of a grid, the cost is
                at least D of the lower one times the least of K in between.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog, minimize

from dropmuon.samplers.base import FloatArray, active_set
from dropmuon.theory.complexity import Means, Regime, check_case, check_regime
from dropmuon.theory.costs import Costs, cost_of_set, members
from dropmuon.theory.generalized import GeneralizedSolution
from dropmuon.theory.leading_order import StochasticCase
from dropmuon.theory.progressive import solve_covering_program
from dropmuon.theory.smoothness import Smoothness

__all__ = ["optimal_sets"]

_GRID = 64
"""Points of the bound in the stochastic regime."""

_MOST_SETS = 64
"""The number of sets up to which a search takes seconds."""

_LEAST = 1e-9
"""The least probability of a set during a search; smaller ones are set to 0 if that is better."""


def optimal_sets(
    sets: Iterable[Iterable[int]],
    smoothness: Smoothness,
    costs: Costs,
    regime: Regime = "smooth",
    case: StochasticCase | None = None,
    *,
    guesses: Iterable[npt.ArrayLike] = (),
) -> GeneralizedSolution:
    """Minimise `relative_cost` over the probabilities of these sets, which reach every layer.

    "smooth" is a linear program, solved exactly. In the others the best of several local searches
    (SLSQP) is returned: from equal probabilities, from those of the bound, and from `guesses`.
    `gap` bounds how far from the optimum it may be. Of more than 64 sets, only these starting
    points are compared.
    """
    check_regime(regime)
    chosen = [active_set("sets", each, costs.num_layers) for each in sets]
    prices = np.array([cost_of_set(costs, each) for each in chosen])
    l0, l1 = (np.stack([smoothness.constants(a, s) for s in chosen]) for a in (0, 1))
    inside = members(chosen, costs.num_layers)
    if regime == "smooth":
        weights = np.divide(0.5, l0, out=np.zeros_like(l0), where=l0 > 0).T
        found = solve_covering_program(weights, prices)
        return GeneralizedSolution(found.probabilities, found.cost, found.cost)
    if not (l1[inside] > 0).all():
        raise ValueError(
            f"smoothness must have L1 > 0 in regime {regime!r}, got 0; give it a small positive one"
        )

    means = Means(dict.fromkeys(chosen, 1.0 / len(chosen)), l0, l1)

    def cost(p: FloatArray) -> float:
        means.p, means.reached = p, p @ inside
        if not means.reached.all():
            return np.inf
        return float(prices @ p) * float(means.relative_iterations(regime, case))

    bound, start = _bound(regime, case, prices, inside, l0, l1)
    starts = [np.full(len(chosen), 1.0 / len(chosen)), start, *map(np.asarray, guesses)]
    candidates = [each / each.sum() for each in starts]
    if len(chosen) <= _MOST_SETS:
        candidates += [_searched(each, cost) for each in list(candidates)]
    candidates += [_without_traces(each) for each in candidates]
    values = [cost(each) for each in candidates]
    best = int(np.argmin(values))
    return GeneralizedSolution(candidates[best], values[best], min(bound, values[best]))


def _searched(start: FloatArray, cost: Callable[[FloatArray], float]) -> FloatArray:
    """Return where SLSQP gets from a point, in masses q whose sum is free: p = q / sum(q).

    Costs depend on min_i, so that derivatives jump: a search that ends at a kink starts again from
    there with a new model of its curvature, as long as that helps.
    """
    best = np.maximum(start, _LEAST)
    best /= best.sum()
    value = cost(best)

    def objective(q: FloatArray) -> float:
        positive = np.maximum(q, _LEAST)
        return float(np.log(cost(positive / positive.sum())))

    for _ in range(4):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            bounds = [(_LEAST, 1.0)] * len(best)
            result = minimize(
                objective, best, method="SLSQP", bounds=bounds, options={"maxiter": 100}
            )
        found = np.maximum(np.asarray(result.x, dtype=np.float64), _LEAST)
        found /= found.sum()
        new = cost(found)
        if not new < value * (1.0 - 1e-6):
            break
        best, value = found, new
    return best


def _without_traces(p: FloatArray) -> FloatArray:
    """Return p without what a search leaves at its lower bound."""
    kept = np.where(p > 10.0 * _LEAST, p, 0.0)
    return np.asarray(kept / kept.sum())


def _bound(
    regime: Regime,
    case: StochasticCase | None,
    prices: FloatArray,
    inside: npt.NDArray[np.bool_],
    l0: FloatArray,
    l1: FloatArray,
) -> tuple[float, FloatArray]:
    """Return a cost that no probabilities go below, and the probabilities that it suggests."""
    least = np.where(inside, l1, np.inf).min(axis=0)
    if regime == "stochastic":
        flat = np.where(inside, l0, np.inf).min(axis=0)
        return _stochastic_bound(check_case(case), prices, inside, flat, least, l1.max(axis=1))
    found = solve_covering_program((inside / least).T, prices)
    if regime == "1/eps":
        return found.cost, found.probabilities
    ratios = np.where(inside, l0 / np.where(inside, l1, 1.0), np.inf).min(axis=0)
    return found.cost * float(ratios.sum()), found.probabilities


def _stochastic_bound(
    case: StochasticCase,
    prices: FloatArray,
    inside: npt.NDArray[np.bool_],
    flat: FloatArray,
    least: FloatArray,
    largest: FloatArray,
) -> tuple[float, FloatArray]:
    sigma, low, high = case.per_layer(len(least))
    kappa = float((low / (16.0 * high * least)).min())
    noise = 2.0 * float((high * sigma).sum())
    drift = 4.0 * float((high / low * flat).sum())
    most = min(1.0, float(np.sqrt(kappa / largest.min())))
    grid = most * np.geomspace(1e-3, 1.0, _GRID)
    # Below the grid: the cheapest set, at the factor of its lowest point.
    bound, best = (
        float(prices.min()) * (3.0 * case.gap / grid[0] + noise) ** 4,
        np.ones(len(prices)),
    )
    for s, next_s in pairwise(grid):
        price, p = _least_price(s, largest / kappa, prices, inside)
        value = price * (3.0 * case.gap / next_s + s * drift + noise) ** 4
        if value < bound:
            bound, best = float(value), p
    return bound, best / best.sum()


def _least_price(
    s: float, steepness: FloatArray, prices: FloatArray, inside: npt.NDArray[np.bool_]
) -> tuple[float, FloatArray]:
    """Return D(s) of the module and where it is reached; infinite if no p has such an s.

    HiGHS keeps constraints up to 1e-7, so that much is granted.
    """
    scale, member = float(prices.max()), inside.T.astype(np.float64)
    result = linprog(
        prices / scale,
        A_ub=np.concatenate([-member, s * s * steepness - member]),
        b_ub=np.repeat([1e-7 - s, 1e-7], len(member)),
        A_eq=np.ones((1, len(prices))),
        b_eq=[1.0],
        method="highs",
    )
    if result.status != 0:
        return np.inf, np.ones(len(prices))
    return float(result.fun) * scale, np.maximum(np.asarray(result.x, dtype=np.float64), 0.0)
