"""The stochastic bound of Theorem "stoch_rt_l0l1_iter", and the step lengths that it requires.

`gap` is f(X^0) - f*, `horizon` the number of steps K that are planned. `parts_variance` gives the
bound what it needs of a step in parts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal, SupportsIndex, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from dropmuon.checks import unknown_name, whole_number
from dropmuon.samplers.base import FloatArray
from dropmuon.samplers.progressive import Progressive, Shares
from dropmuon.theory.complexity import Means, check_positive, countable
from dropmuon.theory.costs import Sampling, nonnegative
from dropmuon.theory.leading_order import StochasticCase
from dropmuon.theory.smoothness import Smoothness

__all__ = [
    "PartsDraws",
    "PartsVariance",
    "StochasticBound",
    "StochasticIterations",
    "admissible_eta",
    "horizon_momentum",
    "horizon_radii",
    "iterations_stochastic",
    "parts_variance",
    "stochastic_bound",
]

PartsDraws: TypeAlias = Literal["systematic", "independent"]
"""How the sets of a step's parts are drawn: together, as samplers do, or each on its own."""

_MOST = 2**1000
"""More steps than anyone counts; beyond, a bound overflows."""

_ADMISSIBLE = 1.0 + 1e-9


@dataclass(frozen=True)
class StochasticBound:
    """The terms of the stochastic bound, in the order of its theorem.

    Attributes:
        gap: 3 delta^0, from the gap f(X^0) - f*.
        start: the noise of the gradients that momentum starts from.
        drift: how far gradients move away from their momentum.
        curvature: what a straight step misses.
        noise: the noise of the gradients that momentum averages.
    """

    gap: float
    start: float
    drift: float
    curvature: float
    noise: float

    @property
    def terms(self) -> dict[str, float]:
        """The five terms by name."""
        return asdict(self)

    @property
    def dominating(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)

    @property
    def total(self) -> float:
        """The bound on the weighted sum of gradient norms."""
        return math.fsum(self.terms.values())


def horizon_momentum(horizon: SupportsIndex) -> float:
    """Return 1 - beta, beta = (K+1)^(-1/2): the share of the old momentum that is kept.

    The momentum that Theorem "stoch_rt_l0l1_iter" requires when K steps are planned.
    """
    return 1.0 - 1.0 / math.sqrt(_steps(horizon) + 1)


def horizon_radii(eta: npt.ArrayLike, horizon: SupportsIndex) -> FloatArray:
    """Return t_i = eta_i / (K+1)^(3/4), the radii of Theorem "stoch_rt_l0l1_iter"."""
    return nonnegative("eta", eta) / math.pow(_steps(horizon) + 1, 0.75)


def admissible_eta(
    sampler: Sampling,
    smoothness: Smoothness,
    horizon: SupportsIndex,
    rho_low: npt.ArrayLike,
    rho_high: npt.ArrayLike,
    progress: float = 0.0,
    *,
    repaired: bool = False,
) -> FloatArray:
    """Return the largest eta_i that Theorem "stoch_rt_l0l1_iter" admits: the root of a minimum.

    rho_low_i ||X|| <= ||X||_2 <= rho_high_i ||X|| compares the norm of layer i with the Euclidean
    (`Norm.rho`). With `repaired`, both conditions on eta_i^2 are smaller by the factor P(i in S),
    which the proof needs where layers are left out of steps: see docs/theory.md.
    """
    root, b = math.sqrt(_steps(horizon) + 1), smoothness.num_layers
    low, high = _per_layer("rho_low", rho_low, b), _per_layer("rho_high", rho_high, b)
    if (low > high).any():
        i = int((low > high).argmax())
        raise ValueError(
            f"rho_low must be at most rho_high, got {low[i]} and {high[i]} in layer {i}; "
            "they bound the Euclidean norm from below and from above"
        )
    means = Means.of(sampler, smoothness, progress)
    reached, l1, beta = means.reached, means.over(means.l1), 1.0 / root
    largest, weight = float(means.largest()), reached if repaired else np.ones(b)
    with np.errstate(divide="ignore"):
        first = root / (4.0 * l1 * largest)
        second = low * reached.min() / (16.0 * high * reached * (1.0 - beta) * l1 * largest)
    eta: FloatArray = np.sqrt(np.minimum(weight * np.minimum(first, second), 1.0))
    return eta


def stochastic_bound(
    sampler: Sampling,
    smoothness: Smoothness,
    gap: float,
    horizon: SupportsIndex,
    eta: npt.ArrayLike,
    sigma: npt.ArrayLike,
    rho_low: npt.ArrayLike,
    rho_high: npt.ArrayLike,
    progress: float = 0.0,
    *,
    repaired: bool = False,
) -> StochasticBound:
    """Return the bound of Theorem "stoch_rt_l0l1_iter" with its terms.

    It bounds the least, over steps, sum of Q_i eta_i / mean(Q eta) E||grad_i f||, for radii
    eta_i / (K+1)^(3/4) and momentum 1 - (K+1)^(-1/2). `sigma` is the standard deviation of the
    stochastic gradient of each layer in the Euclidean norm. A number holds for all layers. For a
    step in parts, both sampler and sigma come from `parts_variance`. With `repaired`, the bound is
    the one that the repaired proof gives, with E[L0/L1 given i in S], for its smaller eta_i.
    """
    check_positive(gap=gap)
    n, b = _steps(horizon) + 1, smoothness.num_layers
    low, high = _per_layer("rho_low", rho_low, b), _per_layer("rho_high", rho_high, b)
    eta_i, deviation = _per_layer("eta", eta, b), nonnegative("sigma", _spread(sigma, b), length=b)
    limit = admissible_eta(sampler, smoothness, horizon, low, high, progress, repaired=repaired)
    i = int((eta_i / limit).argmax())
    if eta_i[i] > limit[i] * _ADMISSIBLE:
        raise ValueError(
            f"eta must be at most admissible_eta(...), {limit[i]:g} in layer {i}, got "
            f"{eta_i[i]:g}; the theorem says nothing about longer steps"
        )
    means = Means.of(sampler, smoothness, progress)
    scale = float((means.reached * eta_i).mean())
    ratio = means.ratio() / means.reached if repaired else means.ratio()
    bend = means.over(means.l0) + means.over(means.l1) * ratio
    return StochasticBound(
        gap=3.0 * gap / (n**0.25 * scale),
        start=6.0 / n**0.5 * float(eta_i @ (high * deviation)) / scale,
        drift=float((eta_i**2 * 2.0 * high / low) @ bend) / (n**0.25 * scale),
        curvature=float(eta_i**2 @ bend) / (2.0 * n**0.75 * scale),
        noise=float((2.0 * means.reached * eta_i) @ (high * deviation)) / (n**0.25 * scale),
    )


@dataclass(frozen=True)
class StochasticIterations:
    """The steps that the stochastic theorem requires, with its radii and its bound there.

    Attributes:
        total: K.
        eta: of each layer; its radius is eta_i / (K+1)^(3/4), see `horizon_radii`.
        bound: the bound on the sum of norms after K steps, at most epsilon, with its terms.
    """

    total: int
    eta: FloatArray
    bound: StochasticBound


def iterations_stochastic(
    sampler: Sampling,
    smoothness: Smoothness,
    case: StochasticCase,
    epsilon: float,
    progress: float = 0.0,
    *,
    weighted: bool = False,
) -> StochasticIterations:
    """Return K after which Theorem "stoch_rt_l0l1_iter" bounds a sum of norms by epsilon.

    With `weighted`, the sum of Q_i eta_i / mean(Q eta) E||grad_i f|| of the theorem; without, the
    plain sum, where min(Q eta) replaces the mean. The radii are the longest admissible ones, times
    a common factor where shorter ones lower the bound. K is enough, and K - 1 is not.
    """
    check_positive(epsilon=epsilon)
    sigma, low, high = case.per_layer(smoothness.num_layers)
    reached = Means.of(sampler, smoothness, progress).reached

    def at(horizon: int) -> StochasticIterations:
        def bound_of(eta: FloatArray) -> StochasticBound:
            given = (sampler, smoothness, case.gap, horizon, eta, sigma, low, high, progress)
            return stochastic_bound(*given, repaired=case.repaired)

        eta = admissible_eta(
            sampler, smoothness, horizon, low, high, progress, repaired=case.repaired
        )
        bound = bound_of(eta)
        bent = bound.drift + bound.curvature
        if bent > bound.gap:  # terms proportional to c and to 1/c have the least sum where equal
            eta = eta * math.sqrt(bound.gap / bent)
            bound = bound_of(eta)
        moved = reached * eta
        scale = 1.0 if weighted else float(moved.mean() / moved.min())
        terms = {name: scale * term for name, term in bound.terms.items()}
        return StochasticIterations(horizon, eta, StochasticBound(**terms))

    high_end = 1
    with np.errstate(all="ignore"):  # what overflows never falls below epsilon
        while not at(high_end).bound.total <= epsilon:
            high_end *= 2
            countable(1.0, 1.0 / high_end if high_end < _MOST else 0.0)
    low_end = high_end // 2
    while high_end - low_end > 1:
        middle = (low_end + high_end) // 2
        if at(middle).bound.total > epsilon:
            low_end = middle
        else:
            high_end = middle
    return at(high_end)


@dataclass(frozen=True)
class PartsVariance:
    """What the theorem needs of a step in parts.

    Attributes:
        moves: pi_i, the probability that layer i is active in at least one part.
        factor: sigma_i^2 = factor_i s_i^2 / n, for n examples of variance s_i^2 in a batch.
    """

    moves: FloatArray
    factor: FloatArray

    @property
    def sampler(self) -> Progressive:
        """The distribution of S, the layers that move: those active in at least one part."""
        return Progressive(np.diff(self.moves, prepend=0.0))


def parts_variance(
    shares: npt.ArrayLike, parts: SupportsIndex, draws: PartsDraws = "systematic"
) -> PartsVariance:
    """Return how often layers move, and the variance of their gradients, with m parts.

    `shares` are q_i, the probabilities that layer i is active in a part, as `samplers.Shares` takes
    them; for any progressive sampler they are its `expected_parts` over m. With N_i the number of
    parts in which layer i is active, pi_i = P(N_i >= 1) and factor_i = m E[1/N_i | N_i >= 1]:

        systematic    pi_i = min(1, m q_i); with a = floor(m q_i) >= 1 and f = m q_i - a,
                      factor_i = (1 + f (1 - f) / (a (a + 1))) / q_i; with a = 0, factor_i = m
        independent   pi_i = 1 - (1 - q_i)^m; e_k = E[1/N; N >= 1] of k parts is
                      (1 - q) e_{k-1} + (1 - (1 - q)^k) / k

    One part is the paper: pi_i = q_i, factor_i = 1. The corollary is in docs/theory.md.
    """
    if draws not in get_args(PartsDraws):
        raise unknown_name("draws", str(draws), get_args(PartsDraws))
    q = np.array(Shares(shares).shares)
    m = whole_number("parts", parts, remedy="1 is the paper's algorithm")
    if draws == "systematic":
        whole = np.floor(m * q)
        rest, some = m * q - whole, np.maximum(whole, 1.0)
        often = (1.0 + rest * (1.0 - rest) / (some * (some + 1.0))) / q
        return PartsVariance(np.minimum(1.0, m * q), np.where(whole >= 1, often, float(m)))
    with np.errstate(divide="ignore"):
        never = np.log1p(-q)
    inverse = np.zeros_like(q)
    for k in range(1, m + 1):
        inverse = (1.0 - q) * inverse - np.expm1(k * never) / k
    moves = -np.expm1(m * never)
    return PartsVariance(moves, m * inverse / moves)


def _steps(horizon: SupportsIndex) -> int:
    return whole_number("horizon", horizon, remedy="give the number of steps that are planned")


def _spread(given: npt.ArrayLike, b: int) -> npt.ArrayLike:
    return np.full(b, given) if np.ndim(given) == 0 else given


def _per_layer(argument: str, given: npt.ArrayLike, b: int) -> FloatArray:
    values = nonnegative(argument, _spread(given, b), length=b)
    if not values.all():
        i = int((values == 0).argmax())
        raise ValueError(f"{argument} must be above 0, got 0 in layer {i}; every layer must move")
    return values
