"""How many parts of a batch each layer needs: the most progress per cost. NumPy only.

With shares q_1 <= ... <= q_b = 1 of a batch, a step costs C(q) = fixed + sum_i backward_i q_i, and
makes the progress G(q) = sum_i gain_i g(q_i), where g falls short of 1 by the noise of a gradient
from few examples. nu_i is the noise of layer i's gradient over the whole batch, relative to its
signal: squared noise over squared norm.

    fixed-radius   g(q) = c(q) = 1 / sqrt(1 + nu/q), the cosine of gradient and mean gradient
    best-radius    g(q) = c(q)^2 = 1 / (1 + nu/q)

A step of length t along a direction with this cosine lowers the loss by t d c - L t^2 / 2, d being
the dual norm of the gradient. At a given t, that is gain_i = t_i d_i times c, to first order; at
the best one, t = d c / L, it is gain_i = d_i^2 / (2 L_i) times c^2.

Both g are concave and rise with q. So for a price z on cost, the levels of G - z C decide alone:
"at least k + 1 parts" holds for the layers s, ..., b-1 with the largest sum over i >= s of what
one more part brings to layer i less what it costs, and s rises with k. Dinkelbach's algorithm
finds the price.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from dropmuon.checks import nonnegative_number, unknown_name, whole_number
from dropmuon.samplers.base import FloatArray

__all__ = [
    "CAUTION",
    "DOUBT",
    "Rule",
    "best_counts",
    "check_rule",
    "counts_at",
    "dinkelbach",
    "first_layers",
    "per_layer",
    "progress_made",
]

Rule: TypeAlias = Literal["best-radius", "fixed-radius"]
"""Which progress a noisy gradient makes: at the radius that suits its noise, or at a given one."""

_Point = TypeVar("_Point")

CAUTION = 2.0
"""What a measured noise-to-signal ratio is multiplied by to predict steps.

Races of parts against full updates agree with 0.6 to 3.3, 1.8 in the median; see
benchmarks/caution.txt. A likely cause for more than 1: part of the measured signal is oscillation,
which momentum cancels.
"""

DOUBT = 2.5
"""The factor by which the right caution may differ from `CAUTION`, either way."""

_TIE = 1e-12
"""Sums closer than this share of their size are equal, and the larger shares are taken."""

_ITERATIONS = 100


def best_counts(
    backward: npt.ArrayLike,
    fixed: float,
    noise: npt.ArrayLike,
    gain: npt.ArrayLike,
    parts: int,
    rule: Rule = "best-radius",
) -> tuple[int, ...]:
    """Return the numbers of parts n_1 <= ... <= n_b = parts of most progress per cost.

    The optimum over all such numbers of at least 1 of G(n / parts) / C(n / parts), exactly; of
    equals the largest, so moving all layers with the whole batch unless less is better.

    Args:
        backward: what the backward pass of each layer costs on the whole batch.
        fixed: what a step costs whatever the shares: forward, updates, overhead.
        noise: nu_i of each layer, or of all; infinity where there is no signal.
        gain: gain_i of each layer, or of all; in any unit.
        parts: the number of parts of a batch, m.
        rule: "best-radius" where step lengths follow the noise, "fixed-radius" where they do not.
    """
    check_rule(rule)
    costs = per_layer("backward", backward)
    b, m = costs.size, whole_number("parts", parts, remedy="1 leaves the batch whole")
    weights, ratios = per_layer("gain", gain, b), per_layer("noise", noise, b, infinite=True)
    base = nonnegative_number("fixed", fixed)
    if not base + costs.sum() > 0:
        raise ValueError("fixed and backward must not all be 0, got only zeros; measure them again")
    made = weights[:, None] * progress_made(np.arange(1, m + 1) / m, ratios[:, None], rule)
    rises, price, layers = np.diff(made, axis=1), costs[:, None] / m, np.arange(b)

    def gained(counts: npt.NDArray[np.intp]) -> float:
        return math.fsum(made[layers, counts - 1].tolist())

    def paid(counts: npt.NDArray[np.intp]) -> float:
        return math.fsum([base, *(costs * counts / m).tolist()])

    found = dinkelbach(gained, paid, lambda ratio: counts_at(rises, ratio * price), np.full(b, m))
    return tuple(found.tolist())


def progress_made(shares: FloatArray, noise: FloatArray, rule: Rule) -> FloatArray:
    """Return g(q), the progress with these shares as a portion of that without noise."""
    squared: FloatArray = shares / (shares + noise)
    return squared if rule == "best-radius" else np.sqrt(squared)


def counts_at(rises: FloatArray, prices: FloatArray) -> npt.NDArray[np.intp]:
    """Return the numbers of parts n_1 <= ... <= n_b = m of most value; of equals the largest.

    `rises[i, k - 1]` is what part k + 1 brings to layer i, never more than part k, and
    `prices[i, 0]` is what a part of it costs.
    """
    cutoffs = np.maximum.accumulate(first_layers(rises, prices))
    return np.asarray(1 + (cutoffs[:, None] <= np.arange(len(rises))).sum(axis=0))


def first_layers(rises: FloatArray, prices: FloatArray) -> npt.NDArray[np.intp]:
    """Return for each column the s with the largest sum of rises - prices over layers i >= s.

    Of equals the smallest s. The last layer is always among them.
    """
    sums = (rises - prices)[::-1].cumsum(axis=0)[::-1]
    slack = _TIE * (rises + prices).sum(axis=0)
    return np.asarray((sums >= sums.max(axis=0) - slack).argmax(axis=0))


def dinkelbach(
    gained: Callable[[_Point], float],
    paid: Callable[[_Point], float],
    maximise: Callable[[float], _Point],
    start: _Point,
) -> _Point:
    """Maximise gained(x) / paid(x), where maximise(z) returns the largest of gained - z paid.

    Dinkelbach's algorithm: the ratio z rises at every step, and is the optimum once nothing is
    above it. The result is `start` unless something is better. As the price z rises the maximisers
    fall, so that of equal optima the largest is found.
    """
    best, ratio = start, gained(start) / paid(start)
    for _ in range(_ITERATIONS):
        point = maximise(ratio)
        above, below = gained(point), paid(point)
        if above - ratio * below <= _TIE * above:
            break
        best, ratio = point, above / below
    return best


def check_rule(rule: str) -> None:
    """Raise ValueError with the accepted names unless this is a rule."""
    if rule not in get_args(Rule):
        raise unknown_name("rule", str(rule), get_args(Rule))


def per_layer(
    argument: str, given: npt.ArrayLike, length: int | None = None, *, infinite: bool = False
) -> FloatArray:
    """Return numbers of at least 0, one per layer, or raise ValueError.

    With `length`, a single number holds for all layers.
    """
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{argument} must be numbers, got {given!r}; give one per layer") from None
    if length is not None and values.ndim == 0:
        values = np.full(length, values)
    if values.ndim != 1 or not values.size or (length is not None and values.size != length):
        wanted = "" if length is None else f", {length}"
        raise ValueError(
            f"{argument} must have one number per layer{wanted}, got shape {values.shape}"
        )
    if not (values >= 0).all() or not (infinite or np.isfinite(values).all()):
        wanted = "at least 0" if infinite else "finite and at least 0"
        raise ValueError(
            f"{argument} must be {wanted}, got {values.tolist()}; measure it again or use 0"
        )
    return values
