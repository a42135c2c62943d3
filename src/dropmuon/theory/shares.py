"""Optimal shares: how much of a batch each layer's gradient should be computed from.

A batch is cut into parts, and layer i is active in a share q_i of them. Backward reaches a layer
only through those above it, so 0 < q_1 <= ... <= q_b = 1. All layers move at every step, which
costs eq. cost_gen with F_i = q_i and Q_i = 1:

    C(q) = c_ov + sum_i c_i q_i + sum_i c_i^sharp

so `costs` are `StepCosts.in_parts()`: forward passes are in the overhead, weight gradients in c_i.
The fixed cost is F = C(0). Shares are chosen by progress per cost (`optimal_shares`), or by the
bound of the stochastic theorem (`optimal_shares_by_bound`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from dropmuon.checks import nonnegative_number, whole_number
from dropmuon.samplers.allocation import (
    Rule,
    best_counts,
    check_rule,
    counts_at,
    dinkelbach,
    first_layers,
    per_layer,
    progress_made,
)
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import Costs

__all__ = ["SharesSolution", "optimal_shares", "optimal_shares_by_bound"]

_BISECTIONS = 60
_FALL = 1e-12


@dataclass(frozen=True)
class SharesSolution:
    """Optimal shares, for `samplers.Shares`.

    Attributes:
        shares: q_i of each layer; they do not decrease, and the last is 1.
        cost: C(q), what a step costs.
        speedup: the criterion at q over the criterion at full shares: at least 1, unless a cost
            was prescribed.
    """

    shares: FloatArray
    cost: float
    speedup: float


def optimal_shares(
    costs: Costs,
    noise: npt.ArrayLike,
    gain: npt.ArrayLike = 1.0,
    *,
    rule: Rule = "best-radius",
    parts: int | None = None,
    least: float = 1e-6,
) -> SharesSolution:
    """Maximise progress per cost, sum_i gain_i g(q_i) / C(q), globally.

    `noise` is nu_i, squared noise over squared signal of layer i's gradient on the whole batch.
    g(q) = 1 / (1 + nu/q) with "best-radius", where step lengths follow the noise and gain_i =
    dual_i^2 / (2 L_i); it is the law of the critical batch size. g(q) = 1 / sqrt(1 + nu/q) with
    "fixed-radius", where gain_i = t_i dual_i. The derivation is in `dropmuon.samplers.allocation`.

    Where one share q serves all layers but a head without gain, g'/g = C'/C gives, with B the sum
    of their c_i and the head's in F,

        best-radius    nu / (q (q + nu)) = B / (F + B q),     q = sqrt(nu F / B)
        fixed-radius   nu / (2 q (q + nu)) = B / (F + B q),   q = (sqrt(nu^2 + 8 nu F / B) - nu) / 4

    or 1 where that is less. With `parts`, the shares are the best multiples of 1 / parts. Without,
    they are at least `least`: where there is no noise, no share is too small.
    """
    check_rule(rule)
    b, base = costs.num_layers, _fixed(costs)
    nu, weights = per_layer("noise", noise, b, infinite=True), per_layer("gain", gain, b)
    B, full = costs.layer, np.ones(b)

    def gained(q: FloatArray) -> float:
        return float(weights @ progress_made(q, nu, rule))

    def paid(q: FloatArray) -> float:
        return base + float(B @ q)

    if parts is not None:
        q = np.array(best_counts(B, base, nu, weights, parts, rule)) / parts
    else:
        low = _least(least)
        q = dinkelbach(gained, paid, lambda z: _shares_at(weights, nu, rule, z * B, low), full)
    made = gained(full)
    speedup = gained(q) / made * (paid(full) / paid(q)) if made > 0 else 1.0
    return SharesSolution(q, paid(q), speedup)


def optimal_shares_by_bound(
    costs: Costs,
    terms: npt.ArrayLike,
    rest: float = 0.0,
    *,
    cost: float | None = None,
    parts: int | None = None,
    least: float = 1e-6,
) -> SharesSolution:
    """Minimise the bound of Theorem "stoch_rt_l0l1_iter" at a given cost, or bound and cost.

    With every layer moving at every step and variances sigma_i^2 / q_i, the terms of the bound
    that vanish slowest are (A + 2 sum_i a_i q_i^(-1/2)) / (K+1)^(1/4), up to a factor. `terms` are
    a_i = eta_i rho_high_i sigma_i, sigma_i being that of the whole batch, and `rest` is A =
    3 gap + the sum of eta_i^2 (2 rho_high_i / rho_low_i)(...) of the drift term.

    At a given `cost` the least sum has q_i = min(1, theta (a_i / c_i)^(2/3)), the quotient pooled
    where it falls with i: in a block of equal shares the sums of a and of c stand for it. Without,
    theta is chosen as well: K grows as the fourth power of the bound's numerator, so that the total
    cost is, relative to full shares,

        [(A + 2 sum_i a_i q_i^(-1/2)) / (A + 2 sum_i a_i)]^4 C(q) / C(1).

    Its logarithm is convex in log q, and stationary where theta^(3/2) (A + 2 sum_i ...) = 4 C(q).
    With `parts`, the shares are the best multiples of 1 / parts by this criterion, else at least
    `least`.
    """
    a = per_layer("terms", terms, costs.num_layers)
    problem = _Bound(a, nonnegative_number("rest", rest), costs)
    if parts is not None and cost is not None:
        raise ValueError(
            f"cost must be left out where parts are given, got {cost!r} and {parts!r}; "
            "multiples of 1 / parts rarely meet a cost"
        )
    if parts is not None:
        q = problem.best_of_parts(whole_number("parts", parts, remedy="1 leaves the batch whole"))
    elif cost is not None:
        q = problem.at_cost(cost, _least(least))
    else:
        q = problem.best(_least(least))
    full = np.ones(q.size)
    gain = problem.log_total(full) - problem.log_total(q)
    if gain <= 0 and cost is None:
        q, gain = full, 0.0
    return SharesSolution(q, problem.cost(q), math.exp(gain))


def _shares_at(
    weights: FloatArray, noise: FloatArray, rule: Rule, prices: FloatArray, least: float
) -> FloatArray:
    """Return the monotone q in [least, 1] that maximise sum_i weights_i g(q_i) - prices_i q_i.

    q_i is the largest value at which the best set of layers to raise, by `first_layers`, holds i.
    """
    b = weights.size
    low, high = np.full(b, least), np.ones(b)

    def raised(q: FloatArray) -> npt.NDArray[np.bool_]:
        slopes = weights[:, None] * _slope(q, noise[:, None], rule)
        return np.asarray(first_layers(slopes, prices[:, None]) <= np.arange(b))

    low[raised(high)] = 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        up = raised(middle)
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return np.maximum.accumulate(low)


def _slope(q: FloatArray, noise: FloatArray, rule: Rule) -> FloatArray:
    """Return g'(q), also where the noise is 0 or infinite."""
    with np.errstate(divide="ignore"):
        missing = 1.0 / (1.0 + q / noise)
    made = progress_made(q, noise, rule)
    slope: FloatArray = made * missing / (q if rule == "best-radius" else 2.0 * q)
    return slope


class _Bound:
    """The bound and the cost as functions of shares, and their best shares."""

    def __init__(self, a: FloatArray, rest: float, costs: Costs) -> None:
        if not rest + a.sum() > 0:
            raise ValueError("rest and terms must not all be 0, got only zeros; measure them again")
        self._a, self._rest, self._B, self._fixed = a, rest, costs.layer, _fixed(costs)
        self._powers = _pooled(a[:-1], self._B[:-1]) ** (2.0 / 3.0)

    def numerator(self, q: FloatArray) -> float:
        return self._rest + 2.0 * float((self._a / np.sqrt(q)).sum())

    def cost(self, q: FloatArray) -> float:
        return self._fixed + float(self._B @ q)

    def log_total(self, q: FloatArray) -> float:
        return 4.0 * math.log(self.numerator(q)) + math.log(self.cost(q))

    def at_cost(self, cost: float, least: float) -> FloatArray:
        """Return the shares of the least bound among those of this cost, or of less."""
        thetas = self._thetas(least)
        levels = np.array([self.cost(self._at(theta, least)) for theta in thetas])
        if not levels[0] <= cost:
            raise ValueError(
                f"cost must be at least that of the least shares, {levels[0]:g}, got {cost!r}; "
                "raise it, or lower least"
            )
        return self._at(float(np.interp(cost, levels, thetas)), least)

    def best(self, least: float) -> FloatArray:
        """Return the shares of the least total cost."""
        thetas = np.log(self._thetas(least))

        def slope(log_theta: float) -> float:
            q = self._at(math.exp(log_theta), least)
            return 1.5 * log_theta - math.log(4.0 * self.cost(q) / self.numerator(q))

        low, high = float(thetas[0]), float(thetas[-1])
        if slope(high) <= 0:
            return self._at(math.exp(high), least)
        if slope(low) >= 0:
            return self._at(math.exp(low), least)
        return self._at(math.exp(brentq(slope, low, high, xtol=1e-15)), least)

    def best_of_parts(self, parts: int) -> FloatArray:
        """Return the multiples of 1 / parts of the least total cost.

        The total is quasi-concave in the bound and the cost, so it is least at a point that
        minimises bound + price * cost for some price.
        """
        full = np.ones(self._a.size)
        least = np.append(full[1:] / parts, 1.0)
        rises = -2.0 * self._a[:, None] * np.diff((np.arange(1, parts + 1) / parts) ** -0.5)
        candidates, pairs = [full, least], [(least, full)]
        while pairs:
            few, many = pairs.pop()
            saved = self.cost(many) - self.cost(few)
            if saved > 0:
                price = (self.numerator(few) - self.numerator(many)) / saved
                q = counts_at(rises, price / parts * self._B[:, None]) / parts
                value = self.numerator(many) + price * self.cost(many)
                if self.numerator(q) + price * self.cost(q) < value * (1.0 - _FALL):
                    candidates.append(q)
                    pairs += [(few, q), (q, many)]
        return min(candidates, key=self.log_total)

    def _thetas(self, least: float) -> FloatArray:
        """Return the values of theta at which a share leaves `least` or reaches 1, ascending."""
        inner = self._powers[(self._powers > 0) & np.isfinite(self._powers)]
        if not inner.size:
            return np.ones(1)
        return np.sort(np.concatenate([least / inner, 1.0 / inner, [2.0 / inner.min()]]))

    def _at(self, theta: float, least: float) -> FloatArray:
        return np.append(np.clip(theta * self._powers, least, 1.0), 1.0)


def _pooled(a: FloatArray, B: FloatArray) -> FloatArray:
    """Return a / B, pooled where it falls: isotonic regression with weights B.

    Where a layer costs nothing the quotient is infinite, until it is pooled with those above.
    """
    blocks: list[tuple[float, float, int]] = []
    for above, below in zip(a.tolist(), B.tolist(), strict=True):
        block = (above, below, 1)
        while blocks and _quotient(blocks[-1]) > _quotient(block):
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    return np.repeat([_quotient(block) for block in blocks], [block[2] for block in blocks])


def _quotient(block: tuple[float, float, int]) -> float:
    return block[0] / block[1] if block[1] > 0 else math.inf


def _fixed(costs: Costs) -> float:
    """Return what a step costs whatever the shares."""
    return costs.overhead + float(costs.sharp.sum())


def _least(given: float) -> float:
    least = nonnegative_number("least", given)
    if not 0 < least <= 1:
        raise ValueError(f"least must be above 0 and at most 1, got {given!r}; try 1e-6")
    return least
