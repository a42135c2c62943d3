"""Arithmetic below all norms: sums and lengths, and polynomials of singular values.

Sums are never in less than float32, and lengths never overflow.

Newton-Schulz applies odd polynomials to the singular values by matrix products alone:
X <- a X + (b A + c A^2) X with A = X X^T, for one polynomial (a, b, c) after the other. The Polar
Express (Amsel et al. 2025, arXiv 2505.16932) takes the best polynomial for the interval that
remains at each step. `orthogonalizers` has the classes that use both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "CUBIC",
    "JORDAN",
    "Polynomial",
    "accumulation_dtype",
    "best_quintic",
    "check_precision",
    "inner",
    "iterate",
    "iterate_on_gram",
    "length",
    "matmul_dtype",
    "polar_express_coefficients",
    "unit",
]

Dim = int | tuple[int, ...]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Polynomial = tuple[float, ...]
"""(a, b) or (a, b, c): the odd polynomial a x + b x^3 + c x^5 of the singular values."""

JORDAN: Polynomial = (3.4445, -4.7750, 2.0315)
"""Jordan 2024, kellerjordan.github.io/posts/muon: steep at zero, ends between 0.7 and 1.2."""

CUBIC: Polynomial = (1.5, -0.5)
"""The classical iteration of Kovarik 1970 and Bjorck and Bowie 1971: slower, converges to one."""

_GRAM_GROWTH = 200.0
"""By how much rounding errors in a Gram matrix may grow before it is computed afresh."""

_CUSHION = 0.02407327424182761  # the published value
_CONVERGED = 5e-6
_ONE: Polynomial = (15 / 8, -10 / 8, 3 / 8)  # the limit of the best quintics on [l, u] -> {1}


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
    scaled, peak = _scaled(x, dim)
    lengths: Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True) * peak
    return lengths.squeeze(tuple(range(x.ndim)) if dim is None else dim)


@torch.no_grad()
def unit(x: Tensor, dim: Dim | None = None) -> Tensor:
    """Return `x` over its l2 norm along `dim`, in at least float32; zero where x is zero."""
    scaled, _ = _scaled(x, dim)
    lengths = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled.div_(lengths.clamp_(min=torch.finfo(scaled.dtype).tiny))


def _scaled(x: Tensor, dim: Dim | None) -> tuple[Tensor, Tensor]:
    """Return x / peak as a new tensor, and peak, the largest magnitude along `dim`."""
    x = x.to(accumulation_dtype(x))
    peak = x.abs().amax(dim=() if dim is None else dim, keepdim=True)  # faster than an inf-norm
    return x / peak.clamp(min=torch.finfo(x.dtype).tiny), peak


def iterate(x: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """Apply the polynomials to x (m, n) or (batch, m, n), which is overwritten.

    A step costs 4 m^2 n + 2 m^3 operations.
    """
    spare = torch.empty_like(x, memory_format=torch.contiguous_format)
    for a, *rest in polynomials:
        update = _even_part(x @ x.mT, rest)
        _multiply_add(x, update, x, beta=a, out=spare)
        x, spare = spare, x
    return x


def iterate_on_gram(x: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """Apply the same polynomials through A = X X^T (m, m) alone: cheaper for wide matrices.

    A <- P A P and Q <- P Q with P = a I + b A + c A^2, and Q applied to X at the end: 8 m^3
    operations a step, and 4 m^2 n once. That is fewer than `iterate` needs from n = 1.5 m on, and
    takes less time from about n = 2.5 m on. Squaring loses small singular values: the rounding
    error of A grows a^2-fold in a step. So Q is applied, and A computed afresh, before that growth
    exceeds 200: after 3 of Jordan's steps, which keeps the difference to `iterate` within the
    rounding error of either.
    """
    for run in _runs(polynomials):
        gram = x @ x.mT
        product: Tensor | None = None
        for index, (a, *rest) in enumerate(run):
            update = _even_part(gram, rest)
            if index < len(run) - 1:
                half = _multiply_add(gram, update, gram, beta=a)
                gram = _multiply_add(half, half, update, beta=a)
            if product is None:
                update.diagonal(dim1=-2, dim2=-1).add_(a)
                product = update
            else:
                product = _multiply_add(product, update, product, beta=a)
        x = cast(Tensor, product) @ x
    return x


def _runs(polynomials: Sequence[Polynomial]) -> Iterator[list[Polynomial]]:
    """Yield runs of steps over which rounding errors in the Gram matrix stay small."""
    run: list[Polynomial] = []
    growth = 1.0
    for polynomial in polynomials:
        if run and growth > _GRAM_GROWTH:
            yield run
            run, growth = [], 1.0
        run.append(polynomial)
        growth *= polynomial[0] ** 2
    yield run


def _even_part(gram: Tensor, rest: Sequence[float]) -> Tensor:
    """Return b A, or b A + c A^2, as a new tensor."""
    if len(rest) == 1:
        return gram * rest[0]
    return _multiply_add(gram, gram, gram, beta=rest[0], alpha=rest[1])


def _multiply_add(
    x: Tensor, y: Tensor, z: Tensor, *, beta: float, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """Return beta x + alpha y z, for matrices or batches of them."""
    if x.ndim == 2:
        return torch.addmm(x, y, z, beta=beta, alpha=alpha, out=out)
    return torch.baddbmm(x, y, z, beta=beta, alpha=alpha, out=out)


@lru_cache(maxsize=64)
def polar_express_coefficients(
    steps: int, lower: float = 1e-3, safety: float = 1.0
) -> tuple[Polynomial, ...]:
    """Return (a, b, c) of each step, for singular values in [`lower`, 1].

    A small singular value must not be lifted at the expense of values close to the upper end u:
    the quintic is fitted to [max(l, 0.024 u), u] and then rescaled so that the images of l and u
    lie symmetrically about one (the cushion and the recentering of the paper). With `safety` s the
    polynomial is p(x / s), except for the limit (15, -10, 3) / 8, which needs none.
    """
    low, high = lower, 1.0
    found: list[Polynomial] = []
    for _ in range(steps):
        if low >= (1.0 - _CONVERGED) * high:
            found.append(_ONE)
            continue
        a, b, c = best_quintic(max(low, _CUSHION * high), high)
        recenter = 2.0 / sum(a * x + b * x**3 + c * x**5 for x in (low, high))
        a, b, c = recenter * a, recenter * b, recenter * c
        found.append((a / safety, b / safety**3, c / safety**5))
        low = a * low + b * low**3 + c * low**5
        high = 2.0 - low
    return tuple(found)


def best_quintic(low: float, high: float) -> tuple[float, float, float]:
    """Return the odd quintic closest to one on [low, high] in the maximum norm, by Remez exchange.

    Its error takes its extreme values, with alternating signs, at `low`, at the two stationary
    points and at `high`. Solve for coefficients and error with guesses of the stationary points,
    move the guesses to where the derivative is zero, and repeat until the error stops changing.
    """
    inside: NDArray[np.float64] = low + (high - low) * np.array([0.25, 0.75])
    error = np.inf
    a = b = c = 0.0
    for _ in range(100):
        points = np.concatenate([[low], inside, [high]])
        system = np.stack([points, points**3, points**5, [1.0, -1.0, 1.0, -1.0]], axis=1)
        a, b, c, level = (float(v) for v in np.linalg.solve(system, np.ones(4)))
        if abs(level - error) <= 1e-15:
            break
        error = level
        root = np.sqrt(9 * b**2 - 20 * a * c)
        inside = np.sqrt((-3 * b + np.array([-root, root])) / (10 * c))
    return a, b, c
