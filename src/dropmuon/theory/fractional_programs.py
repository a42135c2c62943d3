"""Fractional programs: the least ratio of cost to progress, by Dinkelbach's algorithm.

Eq. cost_opt_problem and eq. cost_opt_prob_e ask for the distribution with the least expected step
cost over the weight of the slowest layer. Over all distributions that is intractable; the paper
turns to parametric families of samplers, and names Dinkelbach's algorithm for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar

from dropmuon.checks import whole_number
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import Costs, Sampling, expected_cost, numbers

__all__ = ["Box", "FamilyChoice", "RatioSolution", "best_of_family", "dinkelbach"]

Point = TypeVar("Point")
_Sampler = TypeVar("_Sampler", bound=Sampling)

_TOLERANCE = 1e-10
_REFINED = 3


@dataclass(frozen=True)
class Box:
    """All parameters between two bounds: a number where they are numbers, else a vector.

    `points` parameters are evaluated before the best are refined: the finer, the more global.
    """

    lower: float | Sequence[float]
    upper: float | Sequence[float]
    points: int = 128

    def __post_init__(self) -> None:
        low, high = numbers("lower", self.lower), numbers("upper", self.upper)
        if low.shape != high.shape or not low.size or low.ndim > 1:
            raise ValueError(
                f"lower and upper must be alike, got {self.lower} and {self.upper}; "
                "give two numbers, or two vectors of one length"
            )
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                f"lower must be finite and below upper, got {self.lower} and {self.upper}; "
                "a parameter that stays fixed belongs in make_sampler"
            )
        whole_number("points", self.points, least=2, remedy="the default is 128")
        for name, bound in (("lower", low), ("upper", high)):
            object.__setattr__(self, name, tuple(bound.tolist()) if bound.ndim else float(bound))


@dataclass(frozen=True)
class FamilyChoice(Generic[_Sampler]):
    """The best parameter of a family, its sampler, and its cost up to a common factor.

    `evaluations` counts the samplers that were made to find it.
    """

    parameter: Any
    sampler: _Sampler
    cost: float
    evaluations: int


@dataclass(frozen=True)
class RatioSolution(Generic[Point]):
    """A minimiser of a ratio, its value, and the inner minimisations that it took."""

    point: Point
    value: float
    iterations: int


def best_of_family(
    make_sampler: Callable[[Any], _Sampler],
    parameters: Iterable[Any] | Box,
    costs: Costs,
    weights: Callable[[_Sampler], npt.ArrayLike],
    *,
    progress: float = 0.0,
) -> FamilyChoice[_Sampler]:
    """Minimise E[cost(S)] / min_i w_i over the samplers that `make_sampler(parameter)` gives.

    `weights(sampler)` returns w_i, for instance `smooth_weights` with the constants filled in (eq.
    cost_opt_problem) or `generalized_weights` (eq. cost_opt_prob_e). A sampler with a zero weight
    is never chosen: some layer would not move. Step costs are taken at `progress`; let `weights`
    take the same.

    From an iterable of parameters the result is the best of them. Over a `Box` the inner problem,
    E[cost] - z min_i w_i, is solved by a grid whose best points are refined by Brent's method, or
    by Nelder and Mead's from random points for vectors: global up to that grid.
    """
    family = _Family(make_sampler, costs, weights, progress)
    if isinstance(parameters, Box):
        candidates = _spread(parameters)
    else:
        candidates = list(parameters)
        if not candidates:
            raise ValueError("parameters must not be empty, got no candidates; give at least one")
    known = [family(parameter) for parameter in candidates]
    able = [member for member in known if member.weight > 0]
    if not able:
        raise ValueError(
            f"parameters must hold one whose sampler moves every layer, got none in {len(known)}; "
            "add one that gives every layer a positive probability"
        )

    def minimise(ratio: float) -> _Member[_Sampler]:
        ranked = sorted(known, key=lambda member: member.excess(ratio))
        if not isinstance(parameters, Box):
            return ranked[0]
        refined = [_refine(family, m, parameters, ratio) for m in ranked[:_REFINED]]
        return min([ranked[0], *refined], key=lambda member: member.excess(ratio))

    found = dinkelbach(
        lambda member: member.cost,
        lambda member: member.weight,
        minimise,
        min(able, key=lambda member: member.cost / member.weight),
        tolerance=_TOLERANCE,
    )
    best = found.point
    return FamilyChoice(best.parameter, best.sampler, found.value, family.evaluations)


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


@dataclass(frozen=True)
class _Member(Generic[_Sampler]):
    """One sampler of a family, what a step of it costs, and the weight of its slowest layer."""

    parameter: Any
    sampler: _Sampler
    cost: float
    weight: float

    def excess(self, ratio: float) -> float:
        """Return Dinkelbach's inner objective."""
        return self.cost - ratio * self.weight


class _Family(Generic[_Sampler]):
    """A family of samplers, which makes members and counts them."""

    def __init__(
        self,
        make_sampler: Callable[[Any], _Sampler],
        costs: Costs,
        weights: Callable[[_Sampler], npt.ArrayLike],
        progress: float,
    ) -> None:
        self._make, self._costs, self._weights = make_sampler, costs, weights
        self._progress = progress
        self.evaluations = 0

    def __call__(self, parameter: Any) -> _Member[_Sampler]:
        """Return the member with this parameter, or raise ValueError if its weights are invalid."""
        self.evaluations += 1
        sampler = self._make(parameter)
        given = np.asarray(self._weights(sampler), dtype=np.float64)
        slowest = float(given.min()) if given.size else math.nan
        if not (math.isfinite(slowest) and slowest >= 0):
            raise ValueError(
                f"weights must be finite and non-negative, got {given} for parameter {parameter}; "
                "let weights return one number per layer"
            )
        return _Member(
            parameter, sampler, expected_cost(sampler, self._costs, self._progress), slowest
        )


def _spread(box: Box) -> list[Any]:
    """Return parameters all over the box: a grid of numbers, or random vectors."""
    if isinstance(box.lower, tuple):
        low, high = np.array(box.lower), np.array(box.upper)
        rng = np.random.default_rng(0)
        return [(low + high) / 2, *rng.uniform(low, high, (box.points - 1, len(low)))]
    return list(np.linspace(box.lower, float(np.asarray(box.upper)), box.points).tolist())


def _refine(
    family: _Family[_Sampler], start: _Member[_Sampler], box: Box, ratio: float
) -> _Member[_Sampler]:
    """Search locally from a member for a lower inner objective."""
    low, high = np.atleast_1d(box.lower), np.atleast_1d(box.upper)
    if isinstance(box.lower, tuple):

        def objective(x: FloatArray) -> float:
            return family(np.clip(x, low, high)).excess(ratio)

        result = minimize(
            objective,
            start.parameter,
            method="Nelder-Mead",
            bounds=list(zip(low, high, strict=True)),
            options={"xatol": 1e-9, "fatol": 0.0, "maxiter": 200 * len(low)},
        )
        return family(np.clip(result.x, low, high))
    step = (high[0] - low[0]) / (box.points - 1)
    near = max(low[0], start.parameter - step), min(high[0], start.parameter + step)
    result = minimize_scalar(
        lambda x: family(float(x)).excess(ratio),
        bounds=near,
        method="bounded",
        options={"xatol": 1e-10 * (high[0] - low[0])},
    )
    return family(float(result.x))


def _ratio(above: float, below: float) -> float:
    """Return the ratio at a point of the family, or raise ValueError if it has none."""
    if not (np.isfinite(above) and np.isfinite(below) and below > 0):
        raise ValueError(
            f"the ratio needs a finite numerator and a positive finite denominator, "
            f"got {above} / {below}; start from a point at which every layer can move"
        )
    return above / below
