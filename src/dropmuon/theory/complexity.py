"""How many steps the theorems ask for, for any distribution over active sets.

Every expectation is over S ~ D; the formulas of randomized progressive training are the special
case of suffixes. `gap` is f(X^0) - f*, the paper's delta^0. A `sampler` is anything with
`support` and `marginals`, or a mapping from sets to probabilities.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from dropmuon.checks import whole_number
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import nonnegative
from dropmuon.theory.distributions import Sampling
from dropmuon.theory.expectations import Means
from dropmuon.theory.smoothness import Smoothness

__all__ = [
    "GeneralizedIterations",
    "StochasticBound",
    "admissible_eta",
    "generalized_weights",
    "horizon_momentum",
    "horizon_radii",
    "iterations_generalized",
    "iterations_smooth",
    "smooth_weights",
    "stochastic_bound",
]

_ADMISSIBLE = 1.0 + 1e-9


@dataclass(frozen=True)
class GeneralizedIterations:
    """The iterations of the (L0, L1) case, term by term.

    Attributes:
        quadratic: the term in epsilon^-2, which carries L0.
        linear: the term in epsilon^-1, which carries L1 alone.
    """

    quadratic: float
    linear: float

    @property
    def terms(self) -> dict[str, float]:
        """The two terms by name."""
        return asdict(self)

    @property
    def total(self) -> int:
        """K: the sum of the terms, rounded up."""
        return math.ceil(self.quadratic + self.linear)


@dataclass(frozen=True)
class StochasticBound:
    """The terms of the stochastic bound, in the order of its theorem.

    Attributes:
        gap: 3 delta^0, what is left of the way to go.
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
    def total(self) -> float:
        """The bound on the weighted sum of gradient norms."""
        return math.fsum(self.terms.values())


def smooth_weights(sampler: Sampling, smoothness: Smoothness, progress: float = 0.0) -> FloatArray:
    """Return w_i = E[1{i in S} / (2 L0_{i,S})] (Theorem "rt_smooth_iter").

    A constant of 0 gives an infinite weight: f is affine in that layer, and no step is too long.
    """
    means = Means(sampler, smoothness, progress)
    with np.errstate(divide="ignore"):
        return means.over(np.where(means.member, 0.5 / means.l0, 0.0))


def generalized_weights(
    sampler: Sampling, smoothness: Smoothness, progress: float = 0.0
) -> FloatArray:
    """Return w_i = P(i in S) / E[L1_{i,S} | i in S] (Theorem "rt_l0l1_iter")."""
    means = Means(sampler, smoothness, progress)
    return means.reached**2 / means.positive_l1()


def iterations_smooth(
    sampler: Sampling, smoothness: Smoothness, gap: float, epsilon: float, progress: float = 0.0
) -> int:
    """Return K = ceil(gap / (epsilon min_i w_i)) (section "Smooth Case").

    After K steps of length 1/L0_{i,S} the mean over steps of the sum over layers of
    E||grad_i f||^2 is at most epsilon.
    """
    _positive(gap=gap, epsilon=epsilon)
    weights = smooth_weights(sampler, smoothness, progress)
    return math.ceil(gap / (epsilon * float(weights.min())))


def iterations_generalized(
    sampler: Sampling,
    smoothness: Smoothness,
    gap: float,
    epsilon: float,
    progress: float = 0.0,
    *,
    weighted: bool = False,
) -> GeneralizedIterations:
    """Return K of the (L0, L1) case, after which a sum of gradient norms is at most epsilon.

    With `weighted`, the sum of w_i / mean(w) E||grad_i f|| of Theorem "rt_l0l1_iter"; without, the
    plain sum of section "Generalized Smooth Case", where min_i w_i replaces the mean.
    """
    _positive(gap=gap, epsilon=epsilon)
    means = Means(sampler, smoothness, progress)
    weights = means.reached**2 / means.positive_l1()
    scale = float(weights.mean() if weighted else weights.min())
    spread = float((weights**2 * means.over(means.l0) / means.reached**2).sum())
    return GeneralizedIterations(
        quadratic=2.0 * gap * spread / (epsilon * scale) ** 2, linear=2.0 * gap / (epsilon * scale)
    )


def horizon_momentum(horizon: SupportsIndex) -> float:
    """Return 1 - beta, beta = (K+1)^(-1/2): the share of the old momentum that is kept.

    The momentum that Theorem "stoch_rt_l0l1_iter" asks for when K steps are planned.
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
) -> FloatArray:
    """Return the largest eta_i that Theorem "stoch_rt_l0l1_iter" admits: the root of a minimum.

    rho_low_i ||X|| <= ||X||_2 <= rho_high_i ||X|| compares the norm of layer i with the Euclidean.
    """
    root, b = math.sqrt(_steps(horizon) + 1), smoothness.num_layers
    low, high = _per_layer("rho_low", rho_low, b), _per_layer("rho_high", rho_high, b)
    if (low > high).any():
        i = int((low > high).argmax())
        raise ValueError(
            f"rho_low must be at most rho_high, got {low[i]} and {high[i]} in layer {i}; "
            "they bound the Euclidean norm from below and from above"
        )
    means = Means(sampler, smoothness, progress)
    reached, l1, beta = means.reached, means.over(means.l1), 1.0 / root
    largest = float(means.p @ means.l1.max(axis=1))
    with np.errstate(divide="ignore"):
        first = root / (4.0 * l1 * largest)
        second = low * reached.min() / (16.0 * high * reached * (1.0 - beta) * l1 * largest)
    eta: FloatArray = np.sqrt(np.minimum(np.minimum(first, second), 1.0))
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
) -> StochasticBound:
    """Return the bound of Theorem "stoch_rt_l0l1_iter" with its terms apart.

    It bounds the least, over steps, sum of Q_i eta_i / mean(Q eta) E||grad_i f||, for radii
    eta_i / (K+1)^(3/4) and momentum 1 - (K+1)^(-1/2). `sigma` is the standard deviation of the
    stochastic gradient of each layer in the Euclidean norm. Numbers stand for all layers.
    """
    _positive(gap=gap)
    n, b = _steps(horizon) + 1, smoothness.num_layers
    low, high = _per_layer("rho_low", rho_low, b), _per_layer("rho_high", rho_high, b)
    eta_i, deviation = _per_layer("eta", eta, b), nonnegative("sigma", _spread(sigma, b), length=b)
    limit = admissible_eta(sampler, smoothness, horizon, low, high, progress)
    i = int((eta_i / limit).argmax())
    if eta_i[i] > limit[i] * _ADMISSIBLE:
        raise ValueError(
            f"eta must be at most admissible_eta(...), {limit[i]:g} in layer {i}, got "
            f"{eta_i[i]:g}; the theorem says nothing about longer steps"
        )
    means = Means(sampler, smoothness, progress)
    scale = float((means.reached * eta_i).mean())
    bend = means.over(means.l0) + means.over(means.l1) * means.ratio()
    return StochasticBound(
        gap=3.0 * gap / (n**0.25 * scale),
        start=6.0 / n**0.5 * float(eta_i @ (high * deviation)) / scale,
        drift=float((eta_i**2 * 2.0 * high / low) @ bend) / (n**0.25 * scale),
        curvature=float(eta_i**2 @ bend) / (2.0 * n**0.75 * scale),
        noise=float((2.0 * means.reached * eta_i) @ (high * deviation)) / (n**0.25 * scale),
    )


def _positive(**arguments: float) -> None:
    for name, given in arguments.items():
        if not (math.isfinite(given) and given > 0):
            raise ValueError(f"{name} must be finite and above 0, got {given!r}; measure it again")


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
