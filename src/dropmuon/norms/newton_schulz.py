"""Newton-Schulz: odd polynomials of the singular values, by matrix products alone.

X <- a X + (b A + c A^2) X with A = X X^T, for one polynomial (a, b, c) after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

__all__ = ["CUBIC", "JORDAN", "Polynomial", "iterate", "iterate_on_gram"]

Polynomial = tuple[float, ...]
"""(a, b) or (a, b, c): the odd polynomial a x + b x^3 + c x^5 of the singular values."""

JORDAN: Polynomial = (3.4445, -4.7750, 2.0315)
"""Jordan 2024, kellerjordan.github.io/posts/muon: steep at zero, ends between 0.7 and 1.2."""

CUBIC: Polynomial = (1.5, -0.5)
"""The classical iteration of Kovarik 1970 and Bjorck and Bowie 1971: slower, converges to one."""

_GRAM_GROWTH = 200.0
"""By how much rounding errors in a Gram matrix may grow before it is computed afresh."""


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
