"""Optimal cutoff probabilities of progressive training under (L0, L1)-smoothness.

**The 1/eps regime** (eq. fl2l0l1) is the program

    min_q  sum_i d_i q_i   s.t.  q >= 0,   g_i(q) = A_i^2 - sum_{s<=i} q_s L1[i, s] >= 0 for all i

with A_i = q_1 + ... + q_i and p = q / sum(q). It is not convex, and still it has a closed form.
As printed it also admits q_1 = 0, even q = 0, for which eq. fl1l0l1 has no meaning: layer 1 would
never move. With q_1 > 0 the first constraint reads q_1 >= L1[1, 1].

*Exchange.* Take a feasible q and an m in [0, q_i], positive for i = 1, such that g_i >= 0 with m in
the place of q_i. Move q_i - m from q_i to q_{i+1}. The earlier constraints do not see it;
g_i holds by the choice of m; later on A_k is unchanged and sum_s q_s L1[k, s] changes by
(q_i - m)(L1[k, i+1] - L1[k, i]) <= 0. The cost does not rise, since d_i >= d_{i+1}. The move need
not be small and no derivative of g_i enters, so it does not matter where g_i falls in q_i. For the
last layer the same is done by dropping the mass.

*Hence no branching.* Go through the layers and take the smallest feasible q_i each time:

    A, B = sum_{s<i} q_s, sum_{s<i} q_s L1[i, s]
    A^2 >= B:  q_i = 0
    A^2 <  B:  q^2 + (2A - L1[i, i]) q + A^2 - B = 0 has one root of each sign; q_i is the positive

A positive q_i on its tight constraint could in general be either of two positive roots, which would
call for a search over a tree of branches. Here the tree is a single path. Two positive roots need
A^2 >= B and L1[i, i] > 2A; but then B >= A L1[i, i] > 2 A^2, since the row does not rise. And even
without that, zero is feasible where A^2 >= B, so that neither root is needed.

Every feasible point is carried to this one without any A_i rising, so this point is the least in
every A_i at once. The cost is a non-negative combination of the A_i: the point is a global optimum
for all costs, and the only one if d falls strictly and stays positive.

*Full updates.* q_2 = ... = q_b = 0 if and only if L1[1, 1] >= L1[i, 1] for all i: the condition
that Theorem rpt_p1_l0l1 shows to be necessary is sufficient as well.

**The 1/eps^2 regime** has no such structure; see `solve_generalized_squared`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from dropmuon.checks import whole_number
from dropmuon.samplers.base import FloatArray
from dropmuon.samplers.schedules import Fixed
from dropmuon.theory.costs import Costs
from dropmuon.theory.progressive import check_progressive_constants, matching_tails

__all__ = [
    "GeneralizedSolution",
    "full_update_is_optimal_generalized",
    "generalized_cost",
    "generalized_squared_cost",
    "least_feasible",
    "solve_generalized",
    "solve_generalized_squared",
]

_HELD = 1e-13
"""A constraint that misses by less than this share is held; keeps zeros of the solution exact."""

_ITERATIONS = 500

_PRICES = 1000
"""Grid points of the bound in the 1/eps^2 regime."""


@dataclass(frozen=True)
class GeneralizedSolution:
    """Cutoff probabilities with their cost, and a bound below which no probabilities can go.

    Costs are up to the factors that eq. cost_opt_prob_e and eq. cost_opt_prob_e2 leave out.
    """

    probabilities: FloatArray
    cost: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """How much of the cost is not accounted for by the bound: 0 is a proof of optimality."""
        return 1.0 - self.lower_bound / self.cost if self.cost > self.lower_bound else 0.0


def solve_generalized(
    L1: npt.ArrayLike, costs: Costs, *, repair: bool = False
) -> GeneralizedSolution:
    """Minimise the 1/eps cost (eq. fl1l0l1) over cutoff probabilities, globally.

    `least_feasible` is optimal for constants that do not rise with the cutoff, and the gap is zero.
    For others (a `NonMonotoneWarning`; `repair=True` replaces them by the nearest monotone ones)
    it is feasible only. The bound is then the optimum under min_{t <= s} L1[i, t], the largest
    monotone constants below the given ones: their constraints are weaker, their optimum lower.
    """
    constants = check_progressive_constants(L1, name="L1", repair=repair)
    tails = matching_tails(costs, len(constants))
    q = least_feasible(constants)
    p = q / q.sum()
    cost = float(tails @ p) / float(_rates(p, constants).min())
    envelope = np.tril(np.minimum.accumulate(constants, axis=1))
    bound = cost if np.array_equal(envelope, constants) else float(tails @ least_feasible(envelope))
    return GeneralizedSolution(p, cost, min(bound, cost))


def least_feasible(L1: FloatArray) -> FloatArray:
    """Return the q of eq. fl2l0l1 whose cumulative sums are all the least feasible ones.

    The recursion of this module, in O(b^2) operations. L1 is taken as valid.
    """
    scale = float(L1.max())
    scaled = L1 / scale
    q = np.zeros(len(scaled))
    q[0] = total = scaled[0, 0]
    for i in range(1, len(scaled)):
        demand = float(scaled[i, :i] @ q[:i])
        missing = demand - total * total
        if missing > _HELD * demand:
            half = 0.5 * scaled[i, i] - total
            root = np.sqrt(half * half + missing)
            q[i] = half + root if half > 0 else missing / (root - half)
            total += q[i]
    return q * scale


def full_update_is_optimal_generalized(L1: npt.ArrayLike, *, repair: bool = False) -> bool:
    """Say whether full updates minimise the 1/eps cost among progressive samplers.

    They do if and only if L1[1, 1] = max_i L1[i, 1]. Theorem rpt_p1_l0l1 states one direction;
    the docstring of this module gives the other.
    """
    constants = check_progressive_constants(L1, name="L1", repair=repair)
    return bool(constants[0, 0] >= constants[:, 0].max() * (1.0 - _HELD))


def generalized_cost(probabilities: npt.ArrayLike, L1: npt.ArrayLike, costs: Costs) -> float:
    """Return the 1/eps cost of progressive training (eq. fl1l0l1); infinite where p_1 = 0."""
    constants = check_progressive_constants(L1, name="L1")
    tails = matching_tails(costs, len(constants))
    p = Fixed(probabilities)(len(constants))
    return float(tails @ p) / float(_rates(p, constants).min()) if p[0] > 0 else float("inf")


def generalized_squared_cost(
    probabilities: npt.ArrayLike, L0: npt.ArrayLike, L1: npt.ArrayLike, costs: Costs
) -> float:
    """Return the 1/eps^2 cost of progressive training (eq. cost_opt_prob_e2); inf where p_1 = 0."""
    first, second = _check_both(L0, L1, repair=False)
    tails = matching_tails(costs, len(first))
    p = Fixed(probabilities)(len(first))
    return _squared(p, first, second, tails) if p[0] > 0 else float("inf")


def solve_generalized_squared(
    L0: npt.ArrayLike,
    L1: npt.ArrayLike,
    costs: Costs,
    *,
    repair: bool = False,
    starts: int = 8,
    seed: int = 0,
) -> GeneralizedSolution:
    """Minimise the 1/eps^2 cost over cutoff probabilities: the best of several local searches.

    In q, scaled to min_i A_i^2 / sum_s q_s L1[i, s] = 1, the cost is the product of
    T = sum_i A_i^2 E0_i / E1_i^2 and d.q under the constraints of eq. fl2l0l1, where
    Ea_i = sum_{s<=i} q_s La[i, s]. SLSQP minimises its logarithm from the 1/eps optimum, from full
    and uniform updates, and from `starts` random points. Nothing makes the result global: `gap`
    says how far from it it may be.

    The bound. A term of T is (A_i^2 / E1_i) (E0_i / E1_i) >= min_s L0[i, s] / L1[i, s] by
    feasibility. It is also A_i (E0_i / A_i) / (E1_i / A_i)^2 >= A*_i min_s L0[i, s] / L1[i, s]^2,
    where A*_i is the least feasible cumulative sum: (E1_i, E0_i) / A_i is a convex combination of
    the points (L1[i, s], L0[i, s]), and y / x^2 is quasi-concave, so it is least at one of them.
    Last, it is at least A*_i^2 E0*_i / E1_i^2, and d.q <= P caps E1_i by
    E1*_i + (P - d.q*) max_j (L1[i, j] - L1[i, j+1]) / (d_j - d_{j+1}), as E and d.q are
    non-negative combinations of the A_j. Between two prices d.q of a grid, the cost is at least the
    lower price times the T of the higher one; beyond the last price it exceeds the cost found.
    """
    first, second = _check_both(L0, L1, repair=repair)
    tails = matching_tails(costs, len(first))
    whole_number("starts", starts, least=0, remedy="the default is 8")
    q = least_feasible(second)
    candidates = [q / q.sum()]
    rng = np.random.default_rng(seed)
    b = len(q)
    guesses = [candidates[0], np.eye(b)[0], np.full(b, 1.0 / b), *rng.dirichlet(np.ones(b), starts)]
    for guess in guesses:
        found = _local(guess / float(_rates(guess, second).min()), first, second, tails)
        candidates += [guess, found] if found is not None else [guess]
    values = [_squared(p, first, second, tails) for p in candidates]
    best = int(np.argmin(values))
    bound = _squared_bound(first, second, tails, values[best])
    return GeneralizedSolution(candidates[best], values[best], bound)


def _rates(p: FloatArray, L1: FloatArray) -> FloatArray:
    """Return P(i moves)^2 / E[L1_{i,S} 1{i moves}] per layer; p_1 must be positive."""
    return np.asarray(p.cumsum() ** 2 / (L1 @ p), dtype=np.float64)


def _squared(p: FloatArray, L0: FloatArray, L1: FloatArray, tails: FloatArray) -> float:
    """Return the 1/eps^2 cost of p or of any multiple of it; p_1 must be positive."""
    scaled = p / p.sum()
    slope = L1 @ scaled
    terms = (scaled.cumsum() / slope) ** 2 * (L0 @ scaled)
    return float(terms.sum() * (tails @ scaled) / _rates(scaled, L1).min() ** 2)


def _squared_bound(L0: FloatArray, L1: FloatArray, tails: FloatArray, found: float) -> float:
    """Return the bound that `solve_generalized_squared` explains, at most the cost `found`."""
    lower = np.tri(len(L0), dtype=bool)
    slope = np.where(lower, L1, 1.0)
    ratio = np.where(lower, L0 / slope, np.inf).min(axis=1)
    curved = np.where(lower, L0 / slope**2, np.inf).min(axis=1)
    below0, below1 = (np.tril(np.minimum.accumulate(L, axis=1)) for L in (L0, L1))
    above1 = np.maximum.accumulate(L1[:, ::-1], axis=1)[:, ::-1] * lower
    q = least_feasible(below1)
    least, price = q.cumsum(), float(tails @ q)
    always = np.maximum(ratio, least * curved)
    if not always.any():
        return 0.0
    falls = -np.diff(above1, axis=1, append=0.0)
    savings = -np.diff(tails, append=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.where(falls > 0, falls / savings, 0.0).max(axis=1)
    prices = np.geomspace(price, max(price, found / float(always.sum())), _PRICES)
    capped = np.isfinite(rise)  # else mass moves for free, and nothing caps E1_i
    most = above1 @ q + np.outer(prices[1:] - price, np.where(capped, rise, 0.0))
    terms = capped * least**2 * (below0 @ q) / most**2
    return min(found, float((prices[:-1] * np.maximum(always, terms).sum(axis=1)).min()))


def _local(
    start: FloatArray, L0: FloatArray, L1: FloatArray, tails: FloatArray
) -> FloatArray | None:
    """Search from a feasible q by SLSQP; return probabilities, or None if it left the domain."""
    scale = float(L1.max())
    flat, slope = L0 / scale, L1 / scale
    lower = np.tri(len(L0))

    def objective(q: FloatArray) -> tuple[float, FloatArray]:
        total, e0, e1 = q.cumsum(), flat @ q, slope @ q
        terms, price = (total / e1) ** 2 * e0, float(tails @ q)
        share = (total / e1) ** 2
        grad = lower.T @ (2 * terms / total) + flat.T @ share - slope.T @ (2 * terms / e1)
        return float(np.log(terms.sum()) + np.log(price)), grad / terms.sum() + tails / price

    def constraint(q: FloatArray) -> FloatArray:
        return np.asarray(q.cumsum() ** 2 / (slope @ q) - 1.0)

    def slopes(q: FloatArray) -> FloatArray:
        rate = q.cumsum() / (slope @ q)
        return np.asarray(2 * rate[:, None] * lower - (rate**2)[:, None] * slope)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        result = minimize(
            objective,
            start / scale,
            jac=True,
            method="SLSQP",
            bounds=[(slope[0, 0], None)] + [(0.0, None)] * (len(L0) - 1),
            constraints={"type": "ineq", "fun": constraint, "jac": slopes},
            options={"maxiter": _ITERATIONS, "ftol": 1e-13},
        )
    q = np.asarray(result.x, dtype=np.float64)
    if not np.isfinite(q).all() or q[0] <= 0:
        return None
    q = np.maximum(q, 0.0)
    return np.asarray(q / q.sum(), dtype=np.float64)


def _check_both(
    L0: npt.ArrayLike, L1: npt.ArrayLike, *, repair: bool
) -> tuple[FloatArray, FloatArray]:
    """Return both matrices of constants, or say what is wrong with them; L0 may be zero."""
    first = check_progressive_constants(L0, name="L0", repair=repair, positive=False)
    second = check_progressive_constants(L1, name="L1", repair=repair)
    if first.shape != second.shape:
        raise ValueError(
            f"L0 must have the shape of L1, {second.shape}, got {first.shape}; "
            "estimate both on one model"
        )
    if not first.any():
        raise ValueError(
            "L0 must be positive somewhere, got only zeros: the 1/eps^2 term vanishes; "
            "use solve_generalized"
        )
    return first, second
