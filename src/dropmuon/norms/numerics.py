"""Arithmetic below all norms: sums and lengths, and polynomials for singular values.

Sums are never in less than float32, and lengths never overflow.

Newton-Schulz applies odd polynomials to the singular values, one after the other. The Polar Express
(Amsel et al. 2025, arXiv 2505.16932) takes the best polynomial for the interval that remains at
each step. `iterations` has the products, `orthogonalizers` the classes that use both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "CUBIC",
    "JORDAN",
    "Polynomial",
    "accumulation_dtype",
    "at_most_one",
    "best_polynomial",
    "check_precision",
    "inner",
    "length",
    "matmul_dtype",
    "no_autocast",
    "polar_express_coefficients",
    "unit",
]

Dim = int | tuple[int, ...]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Polynomial = tuple[float, ...]
"""(a, b, ...): the odd polynomial a x + b x^3 + ... of the singular values; 2, 3 or 5 numbers."""

JORDAN: Polynomial = (3.4445, -4.7750, 2.0315)
"""Jordan 2024, kellerjordan.github.io/posts/muon: steep at zero, ends between 0.7 and 1.2."""

CUBIC: Polynomial = (1.5, -0.5)
"""The classical iteration of Kovarik 1970 and Bjorck and Bowie 1971: slower, converges to one."""

_CUSHION = 0.02407327424182761  # the published value, for quintics
_CONVERGED = 5e-6
_ONE: dict[int, Polynomial] = {  # the limit of the best polynomials on [l, u] -> {1}, by degree
    5: (15 / 8, -10 / 8, 3 / 8),
    9: (315 / 128, -420 / 128, 378 / 128, -180 / 128, 35 / 128),
}


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Return float64 for float64 tensors, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def matmul_dtype(x: Tensor, precision: torch.dtype | None) -> torch.dtype:
    """Return the type to multiply matrices in: `precision` if given, else a fast and safe one.

    A 16-bit tensor is multiplied in bfloat16 on CUDA only. On a CPU a bfloat16 product may be
    hundreds of times slower than a float32 one, and on some it is an illegal instruction.
    """
    if precision is not None:
        return precision
    if x.device.type == "cuda" and x.dtype in (torch.float16, torch.bfloat16):
        return torch.bfloat16
    return accumulation_dtype(x)


@contextmanager
def no_autocast(devices: Iterable[str]) -> Iterator[None]:
    """Turn autocast off: the precision of a step is chosen by its norms, wherever it is taken."""
    with ExitStack() as stack:
        for device in devices:
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def check_precision(precision: torch.dtype | None) -> None:
    """Reject a `precision` that is not a floating-point type."""
    if precision is not None and precision not in _FLOATS:
        accepted = ", ".join(map(str, _FLOATS))
        raise ValueError(f"precision must be None or one of {accepted}, got {precision!r}")


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return <x, y>, the sum of the products of entries, in at least float32."""
    wide = accumulation_dtype(x)
    return (x.to(wide) * y.to(wide)).sum()


def length(x: Tensor, dim: Dim | None = None) -> Tensor:
    """Return the l2 norm over `dim` (all dimensions by default), in at least float32.

    Entries are divided by the largest before they are squared: the square of 1e-25 is zero in
    float32, and that of 1e25 infinite.
    """
    scaled, peak = at_most_one(x, dim)
    lengths: Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True) * peak
    return lengths.squeeze(tuple(range(x.ndim)) if dim is None else dim)


@torch.no_grad()
def unit(x: Tensor, dim: Dim | None = None) -> Tensor:
    """Return `x` over its l2 norm along `dim`, in at least float32; zero where x is zero."""
    scaled, _ = at_most_one(x, dim)
    lengths = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled.div_(lengths.clamp_(min=torch.finfo(scaled.dtype).tiny))


def at_most_one(x: Tensor, dim: Dim | None = None) -> tuple[Tensor, Tensor]:
    """Return x / peak as a new tensor, and peak, the largest magnitude along `dim`.

    In at least float32. The largest magnitude of what is returned is one, also where all of x is
    subnormal, so that its powers neither overflow nor all vanish; zeros stay zero.
    """
    x = x.to(accumulation_dtype(x))
    peak = x.abs().amax(dim=() if dim is None else dim, keepdim=True)  # faster than an inf-norm
    return x / torch.where(peak > 0, peak, 1.0), peak


@lru_cache(maxsize=64)
def polar_express_coefficients(
    steps: int, lower: float = 1e-3, safety: float = 1.0, degree: int = 5
) -> tuple[Polynomial, ...]:
    """Return the coefficients (a, b, ...) of each step, for singular values in [`lower`, 1].

    A small singular value must not be lifted at the expense of values close to the upper end u:
    a quintic is fitted to [max(l, 0.024 u), u] and then rescaled so that the images of l and u
    lie symmetrically about one (the cushion and the recentering of the paper). Polynomials of
    degree 9 are used for few steps and a larger `lower`, and need no cushion. With `safety` s the
    polynomial is p(x / s), except for the limit, (15, -10, 3) / 8 for quintics, which needs none.
    """
    low, high = lower, 1.0
    cushion = _CUSHION if degree == 5 else 0.0
    found: list[Polynomial] = []
    for _ in range(steps):
        if low >= (1.0 - _CONVERGED) * high:
            found.append(_ONE[degree])
            continue
        best = best_polynomial(max(low, cushion * high), high, degree)
        recenter = 2.0 / (_odd(best, low) + _odd(best, high))
        best = tuple(recenter * value for value in best)
        found.append(tuple(value / safety ** (2 * i + 1) for i, value in enumerate(best)))
        low = _odd(best, low)
        high = 2.0 - low
    return tuple(found)


def best_polynomial(low: float, high: float, degree: int = 5) -> Polynomial:
    """Return the odd polynomial closest to one on [low, high] in the maximum norm, by Remez.

    Its error takes its extreme values, with alternating signs, at `low`, at the stationary points
    and at `high`. Solve for coefficients and error with guesses of the stationary points, move the
    guesses to where the derivative is zero, and repeat until the error stops changing.
    """
    powers = np.arange(1, degree + 1, 2)
    signs = (-1.0) ** np.arange(len(powers) + 1)
    points: NDArray[np.float64] = (
        low + (high - low) * (1 - np.cos(np.linspace(0.0, np.pi, len(signs)))) / 2
    )
    error = np.inf
    coefficients = np.zeros(len(powers))
    for _ in range(100):
        system = np.column_stack([points[:, None] ** powers, signs])
        *values, level = np.linalg.solve(system, np.ones(len(signs)))
        coefficients = np.array(values)
        if abs(level - error) <= 1e-15:
            break
        error = level
        squares = np.sort(np.roots((powers * coefficients)[::-1]).real)
        points = np.concatenate([[low], np.sqrt(squares), [high]])
    return tuple(map(float, coefficients))


def _odd(polynomial: Polynomial, x: float) -> float:
    return sum(value * x ** (2 * i + 1) for i, value in enumerate(polynomial))
