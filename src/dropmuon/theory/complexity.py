"""The number of steps that the theorems require, for any distribution over active sets.

Every expectation is over S ~ D; the formulas of randomized progressive training are the special
case of suffixes. `gap` is f(X^0) - f*, the paper's delta^0. A `sampler` is a `Sampler`, or a
mapping from sets to probabilities. The stochastic case is in `stochastic`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, Self, TypeAlias, get_args

import numpy as np

from dropmuon.checks import unknown_name
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory.costs import Sampling, distribution_of, members
from dropmuon.theory.leading_order import StochasticCase, leading_iterations
from dropmuon.theory.smoothness import Smoothness

__all__ = [
    "GeneralizedIterations",
    "Means",
    "Regime",
    "check_case",
    "check_positive",
    "check_regime",
    "countable",
    "generalized_weights",
    "iterations_generalized",
    "iterations_smooth",
    "relative_iterations",
    "smooth_weights",
]

Regime: TypeAlias = Literal["smooth", "1/eps", "1/eps^2", "stochastic"]
"""Smooth layers; (L0, L1)-smooth ones where the 1/eps, or the 1/eps^2 term of K dominates; or these
with stochastic gradients, where K grows as 1/eps^4."""


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


def iterations_smooth(
    sampler: Sampling, smoothness: Smoothness, gap: float, epsilon: float, progress: float = 0.0
) -> int:
    """Return K = ceil(gap / (epsilon min_i w_i)) (section "Smooth Case").

    After K steps of length 1/L0_{i,S} the mean over steps of the sum over layers of
    E||grad_i f||^2 is at most epsilon.
    """
    check_positive(gap=gap, epsilon=epsilon)
    weights = smooth_weights(sampler, smoothness, progress)
    return math.ceil(countable(gap, epsilon * float(weights.min())))


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
    check_positive(gap=gap, epsilon=epsilon)
    means = Means.of(sampler, smoothness, progress)
    weights = means.generalized_weights()
    scale = epsilon * float(weights.mean() if weighted else weights.min())
    return GeneralizedIterations(
        quadratic=countable(2.0 * gap * float(means.spread()), scale**2),
        linear=countable(2.0 * gap, scale),
    )


def countable(work: float, progress: float) -> float:
    """Return work / progress, a number of iterations; ValueError if it is beyond floats."""
    found = work / progress if progress > 0 else math.inf
    if not math.isfinite(found):
        raise ValueError(
            "the number of iterations is larger than any float: constants and gap are too large "
            "for this epsilon, or epsilon is too small; measure the constants again"
        )
    return found


def smooth_weights(sampler: Sampling, smoothness: Smoothness, progress: float = 0.0) -> FloatArray:
    """Return w_i = E[1{i in S} / (2 L0_{i,S})] (Theorem "rt_smooth_iter").

    A constant of 0 gives an infinite weight: f is affine in that layer, and no step is too long.
    """
    return Means.of(sampler, smoothness, progress).smooth_weights()


def generalized_weights(
    sampler: Sampling, smoothness: Smoothness, progress: float = 0.0
) -> FloatArray:
    """Return w_i = P(i in S) / E[L1_{i,S} | i in S] (Theorem "rt_l0l1_iter")."""
    return Means.of(sampler, smoothness, progress).generalized_weights()


def relative_iterations(
    distribution: Mapping[ActiveSet, float],
    l0: FloatArray,
    l1: FloatArray | None = None,
    regime: Regime = "smooth",
    case: StochasticCase | None = None,
) -> FloatArray:
    """Return K up to the factor that all distributions share, for one table of constants or many.

    `distribution` is what `distribution_of` or `Sampler.distribution` returns. `l0[..., k, i]` and
    `l1[..., k, i]` are the constants of layer i when the k-th of its sets moves, and 0 outside of
    that set. The result has the shape of the leading axes. With the weights w of the theorems:

        smooth   1 / min_i w_i                                      (times gap / epsilon)
        1/eps    1 / min_i w_i                                      (times 2 gap / epsilon)
        1/eps^2  sum_i (w_i / P(i in S))^2 E[L0_{i,S}] / (min_i w_i)^2   (times 2 gap / epsilon^2)

    and in the regime "stochastic", which needs a `case`, (A / min_i(Q_i eta_i))^4 of the module
    `leading_order` (times 1 / epsilon^4).
    """
    return Means(distribution, l0, l1).relative_iterations(regime, case)


class Means:
    """Means over S ~ D of tables of constants: sets as rows, layers as columns.

    `l0` and `l1` may have leading axes, one table after the other; so do the results then.

    Attributes:
        p: the probability of each set.
        member: whether the set holds the layer.
        l0: L0_{i,S}, 0 outside of the set.
        l1: L1_{i,S}, 0 outside of the set.
        reached: P(i in S), positive for every layer.
    """

    def __init__(
        self, distribution: Mapping[ActiveSet, float], l0: FloatArray, l1: FloatArray | None = None
    ) -> None:
        self.l0, self.l1 = l0, np.zeros_like(l0) if l1 is None else l1
        if self.l0.ndim < 2 or len(distribution) != l0.shape[-2] or self.l1.shape != l0.shape:
            raise ValueError(
                f"l0 and l1 must have a row for each of the {len(distribution)} sets, got shapes "
                f"{l0.shape} and {self.l1.shape}; give arrays (..., sets, layers)"
            )
        self.p = np.array([*distribution.values()])
        self.member = members(distribution, l0.shape[-1])
        self.reached = self.over(self.member.astype(np.float64))
        if not self.reached.all():
            i = int((self.reached == 0).argmax())
            raise ValueError(
                f"sampler must reach every layer, got probability 0 for layer {i}; "
                "give a positive probability to a set that holds it"
            )

    @classmethod
    def of(cls, sampler: Sampling, smoothness: Smoothness, progress: float = 0.0) -> Self:
        """Make the means of the constants of these sets, as drawn by a sampler."""
        distribution = distribution_of(sampler, smoothness.num_layers, progress)
        l0, l1 = (np.stack([smoothness.constants(a, s) for s in distribution]) for a in (0, 1))
        return cls(distribution, l0, l1)

    def over(self, values: FloatArray) -> FloatArray:
        """Return the mean of each column, E[value_{i,S}]."""
        mean: FloatArray = self.p @ values
        return mean

    def ratio(self) -> FloatArray:
        """Return E[L0_{i,S} / L1_{i,S}], 0 where a layer has no L1 and its term vanishes."""
        l0, l1 = self.l0, self.l1
        some = self.over(l1)[..., None, :] > 0
        open_ = self.member & some & (l1 == 0) & (l0 > 0)
        if open_.any():
            i = int(np.argwhere(open_)[0, -1])
            raise ValueError(
                f"smoothness must have L1 > 0 for all sets with layer {i} or for none, got both; "
                "give the zeros a small positive L1"
            )
        return self.over(np.divide(l0, l1, out=np.zeros_like(l0), where=l1 > 0))

    def largest(self) -> FloatArray:
        """Return E[max_i L1_{i,S}]."""
        return np.asarray(self.over(self.l1.max(axis=-1, keepdims=True))[..., 0])

    def smooth_weights(self) -> FloatArray:
        """Return w_i = E[1{i in S} / (2 L0_{i,S})]."""
        with np.errstate(divide="ignore"):
            return self.over(np.where(self.member, 0.5 / self.l0, 0.0))

    def generalized_weights(self) -> FloatArray:
        """Return w_i = P(i in S)^2 / E[1{i in S} L1_{i,S}]."""
        l1 = self.over(self.l1)
        if not l1.all():
            i = int(np.argwhere(l1 == 0)[0, -1])
            raise ValueError(
                f"smoothness must have L1 > 0 in every layer here, got 0 in layer {i}; give it a "
                "small positive L1, or use iterations_smooth where all are 0"
            )
        weights: FloatArray = self.reached**2 / l1
        return weights

    def spread(self) -> FloatArray:
        """Return sum_i (w_i / P(i in S))^2 E[1{i in S} L0_{i,S}], a factor of the 1/eps^2 term."""
        weights = self.generalized_weights()
        terms: FloatArray = weights**2 * self.over(self.l0) / self.reached**2
        return np.asarray(terms.sum(axis=-1))

    def relative_iterations(self, regime: Regime, case: StochasticCase | None = None) -> FloatArray:
        """Return K in this regime, without the factor that all distributions share."""
        check_regime(regime)
        if regime == "stochastic":
            l0, l1 = self.over(self.l0), self.over(self.l1)
            known, ratio, largest = check_case(case), self.ratio(), self.largest()
            return leading_iterations(known, self.reached, l0, l1, ratio, largest)
        weights = self.smooth_weights() if regime == "smooth" else self.generalized_weights()
        slowest = weights.min(axis=-1)
        return np.asarray(self.spread() / slowest**2 if regime == "1/eps^2" else 1.0 / slowest)


def check_regime(regime: str) -> None:
    """Raise ValueError with the accepted names unless this is a regime."""
    if regime not in get_args(Regime):
        raise unknown_name("regime", str(regime), get_args(Regime))


def check_case(case: StochasticCase | None) -> StochasticCase:
    """Return what the regime "stochastic" needs, or raise ValueError."""
    if case is None:
        raise ValueError(
            "regime 'stochastic' needs a case, the gap, noise and norms, got None; "
            "give StochasticCase(gap, sigma, rho_low, rho_high)"
        )
    return case


def check_positive(**arguments: float) -> None:
    """Raise ValueError with the name of the first argument that is not finite and above 0."""
    for name, given in arguments.items():
        if not (math.isfinite(given) and given > 0):
            raise ValueError(f"{name} must be finite and above 0, got {given!r}; measure it again")
