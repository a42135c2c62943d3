"""The stochastic theorem to leading order: how many steps it requires as epsilon falls.

Of the five terms of Theorem "stoch_rt_l0l1_iter" three fall as (K+1)^(-1/4): gap, drift and noise.
Times mean(Q eta) the theorem reads sum_i Q_i eta_i E||grad_i f|| <= A / (K+1)^(1/4), and the left
side is at least min_i(Q_i eta_i) times the plain sum of norms. So that sum is at most epsilon after

    K + 1 = (A / (epsilon min_i Q_i eta_i))^4,
    A = 3 gap + sum_i eta_i^2 (2 rho_high_i / rho_low_i) (E[L0] + E[L1] E[L0/L1])
        + sum_i 2 Q_i eta_i rho_high_i sigma_i.

The paper treats one dominating term at a time; all three have the same power of epsilon, so they
can be kept together. eta_i is the largest that is admissible as K grows, times a common c <= 1: the
terms in turn are proportional to 1/c, c and 1, least at c = min(1, sqrt(gap term / drift term)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import nonnegative

__all__ = ["StochasticCase", "leading_iterations"]


@dataclass(frozen=True)
class StochasticCase:
    """What the stochastic theorem needs beside constants of smoothness.

    Attributes:
        gap: delta^0 = f(X^0) - f*.
        sigma: the standard deviation of each layer's stochastic gradient, in the Euclidean norm.
        rho_low, rho_high: rho_low ||X_i|| <= ||X_i||_2 <= rho_high ||X_i||, see `Norm.rho`.
        repaired: whether to take the radii of the repaired proof, see `admissible_eta`.

    A number holds for all layers.
    """

    gap: float
    sigma: npt.ArrayLike
    rho_low: npt.ArrayLike = 1.0
    rho_high: npt.ArrayLike = 1.0
    repaired: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gap) and self.gap > 0):
            raise ValueError(f"gap must be finite and above 0, got {self.gap!r}; measure it again")
        for name in ("sigma", "rho_low", "rho_high"):
            values = nonnegative(name, np.atleast_1d(np.asarray(getattr(self, name), np.float64)))
            if name != "sigma" and not values.all():
                raise ValueError(f"{name} must be above 0, got {values.tolist()}; see Norm.rho")

    def per_layer(self, num_layers: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return sigma, rho_low and rho_high of every layer, or raise ValueError."""
        found = []
        for name in ("sigma", "rho_low", "rho_high"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim and values.shape != (num_layers,):
                raise ValueError(
                    f"{name} must have one entry per layer, {num_layers}, got {values.size}"
                )
            found.append(np.broadcast_to(values, (num_layers,)))
        return found[0], found[1], found[2]


def leading_iterations(
    case: StochasticCase,
    reached: FloatArray,
    l0: FloatArray,
    l1: FloatArray,
    ratio: FloatArray,
    largest: FloatArray,
) -> FloatArray:
    """Return K epsilon^4 to leading order, for one table of means or many.

    `reached` = P(i in S), `l0`, `l1` and `ratio` = E[L0], E[L1] and E[L0/L1] over S with i in S,
    all (..., layers), and `largest` = E[max_i L1_{i,S}], of the leading axes.
    """
    sigma, low, high = case.per_layer(reached.shape[-1])
    most = np.asarray(largest)[..., None]
    with np.errstate(divide="ignore"):
        limit = low * reached.min(axis=-1, keepdims=True) / (16.0 * high * reached * l1 * most)
    weight = reached if case.repaired else 1.0
    eta = np.sqrt(np.minimum(weight * limit, 1.0))
    given = ratio / reached if case.repaired else ratio
    drift = (eta**2 * (2.0 * high / low) * (l0 + l1 * given)).sum(axis=-1)
    noise = (2.0 * reached * eta * high * sigma).sum(axis=-1)
    shorter = np.sqrt(np.minimum(3.0 * case.gap / np.maximum(drift, 3.0 * case.gap), 1.0))
    total = 3.0 * case.gap / shorter + shorter * drift + noise
    return np.asarray((total / (reached * eta).min(axis=-1)) ** 4)
