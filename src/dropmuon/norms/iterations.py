"""Odd polynomials of singular values, applied to matrices by products alone.

A step is X <- q(A) X with A = X X^T and q(t) = a + b t, or + c t^2, or + c t^2 + d t^3 + e t^4.
A and all its polynomials are symmetric: on a CPU only blocks on and below the diagonal are
multiplied, the others mirrored. Nothing here waits for a device or depends on values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from dropmuon.norms.numerics import Polynomial

__all__ = ["iterate", "iterate_on_gram"]

GRAM_GROWTH = 200.0
"""By how much rounding errors in a Gram matrix may grow before it is computed afresh."""

_STRIPS = 8
"""Strips of a symmetric product, at most: 36 of 64 blocks are then multiplied."""

_STRIP_ROWS = 64
"""Rows of a strip per thread that works on it, at least: below, calls cost more than blocks save.

Measured with float32 on one core, in time of a whole product: 0.93 for 192 rows in three strips,
0.82 for 256 in four, 0.70 for 384 in six; but 1.14 for 128 rows in two. In a stack of eight, where
a call does more: 0.88 for 128 rows, 0.77 for 192, 0.73 for 256.
"""

_SHORT_ROWS = 1024
"""Rows of a 16-bit matrix from which strips pay, where a CPU multiplies such types itself: its
products are several times faster, and copies are not. Stacks of them are never cut."""


def iterate(x: Tensor, polynomials: Sequence[Polynomial], *, schatten: int = 2) -> Tensor:
    """Apply the polynomials to x (m, n) or (batch, m, n), which is overwritten.

    x has Frobenius norm one; with `schatten=8` it may have any, and is first divided by its
    Schatten 8-norm. A quintic costs 4 m^2 n + 2 m^3 operations, of which symmetry saves up to
    7/8 (m^2 n + m^3).
    """
    x = x.contiguous()  # results take its place, and stacks in another layout are slow to write
    spare = torch.empty_like(x)
    multiply_add = torch.addmm if x.ndim == 2 else torch.baddbmm
    for index, polynomial in enumerate(polynomials):
        gram = _gram(x)
        square = _shrink(x, gram) if schatten == 8 and index == 0 else None
        constant, even = _even(gram, polynomial, square)
        multiply_add(x, even, x, beta=constant, out=spare)
        x, spare = spare, x
    return x


def iterate_on_gram(
    x: Tensor,
    polynomials: Sequence[Polynomial],
    *,
    schatten: int = 2,
    growth: float = GRAM_GROWTH,
) -> Tensor:
    """Apply the same polynomials through A = X X^T (m, m) alone: cheaper for wide matrices.

    A <- P A P and Q <- P Q with P = q(A), and Q applied to X at the end; all of these commute, so
    all are symmetric. Squaring loses small singular values: the rounding error of A grows a^2-fold
    in a step. So Q is applied, and A computed afresh, before that growth exceeds `growth`. With
    200, after 3 of Jordan's steps, the difference to `iterate` is within the rounding error of
    either.
    """
    for number, run in enumerate(_runs(polynomials, growth)):
        gram = _gram(x)
        square = _shrink(x, gram) if schatten == 8 and number == 0 else None
        product: Tensor | None = None
        for index, polynomial in enumerate(run):
            is_last = index == len(run) - 1
            start = square if index == 0 else None
            constant, update = _even(gram, polynomial, start, keeps_gram=not is_last)
            update.diagonal(dim1=-2, dim2=-1).add_(constant)
            if not is_last:
                half = _symmetric(torch.empty_like(gram), update, gram)
                gram = _symmetric(gram, half, update)
            if product is None:
                product = update
            else:
                product = _symmetric(torch.empty_like(product), update, product)
        x = cast(Tensor, product) @ x
    return x


def _runs(polynomials: Sequence[Polynomial], growth: float) -> Iterator[list[Polynomial]]:
    """Yield runs of steps over which rounding errors in the Gram matrix stay small."""
    run: list[Polynomial] = []
    grown = 1.0
    for polynomial in polynomials:
        if run and grown > growth:
            yield run
            run, grown = [], 1.0
        run.append(polynomial)
        grown *= polynomial[0] ** 2
    yield run


def _gram(x: Tensor) -> Tensor:
    return _symmetric(x.new_empty(*x.shape[:-1], x.shape[-2]), x, x.mT)


def _shrink(x: Tensor, gram: Tensor) -> Tensor:
    """Divide X in place by its Schatten 8-norm, and A by the square of it; return the new A^2.

    ||X||_8 = ||A^2||_F^(1/4) costs no product, as A^2 is needed anyway. It is at least the largest
    singular value, and at most m^(1/8) times as large: 2.6 times for 2048 rows, where the Frobenius
    norm may be 45 times as large, or two steps away.
    """
    square = _symmetric(torch.empty_like(gram), gram, gram)
    lengths = torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True, dtype=_wide(square))
    inverse = lengths.clamp_(min=torch.finfo(lengths.dtype).tiny).rsqrt_()
    x.mul_(inverse.sqrt())
    gram.mul_(inverse)
    return square.mul_(inverse.square())


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _even(
    gram: Tensor, polynomial: Polynomial, square: Tensor | None = None, *, keeps_gram: bool = False
) -> tuple[float, Tensor]:
    """Return a number k and the matrix q(A) - k I, which may take the place of A and of A^2.

    Degree 9 is e R^2 + h A + k I with R = A^2 + f A + g I: one product more than degree 5, and no
    pass over the entries beside its products.
    """
    a, b, *rest = polynomial
    if not rest:
        return a, gram * b
    if len(rest) == 1:
        c = rest[0]
        if square is not None:
            return a, square.mul_(c).add_(gram, alpha=b)
        return a, _symmetric(gram.clone(), gram, gram, beta=b, alpha=c)
    c, d, e = rest
    f = d / (2 * e)
    g = (c / e - f * f) / 2
    if square is not None:
        root = square.add_(gram, alpha=f)
    else:
        root = _symmetric(gram.clone(), gram, gram, beta=f)
    root.diagonal(dim1=-2, dim2=-1).add_(g)
    out = gram.clone() if keeps_gram else gram
    return a - e * g * g, _symmetric(out, root, root, beta=b - 2 * e * f * g, alpha=e)


def _symmetric(
    out: Tensor, x: Tensor, y: Tensor, *, beta: float = 0.0, alpha: float = 1.0
) -> Tensor:
    """Set out = beta out + alpha x y, which must be symmetric; return it.

    On a CPU it is computed in strips of rows, each up to the diagonal only. `alpha` is one where
    `beta` is zero.
    """
    height = _strip_height(out)
    rows = out.shape[-1]
    if height == rows:
        multiply_add = torch.addmm if out.ndim == 2 else torch.baddbmm
        return multiply_add(out, x, y, beta=beta, alpha=alpha, out=out)
    for top in range(0, rows, height):
        end = min(top + height, rows)
        strip = out[..., top:end, :end]
        if out.ndim == 2:
            torch.addmm(strip, x[top:end], y[:, :end], beta=beta, alpha=alpha, out=strip)
        else:  # a batched product is fast only where its result is contiguous
            product = torch.bmm(x[:, top:end], y[..., :end])
            if beta:
                torch.add(product.mul_(alpha), strip, alpha=beta, out=strip)
            else:
                strip.copy_(product)
        if top:
            out[..., :top, top:end] = strip[..., :top].mT
    return out


def _strip_height(out: Tensor) -> int:
    """Return the rows of a strip; all of them where strips do not pay, as on accelerators.

    The matrices of a stack are spread over the threads, so that one of them works on each.
    """
    rows = out.shape[-1]
    threads, fewest = (torch.get_num_threads(), 3) if out.ndim == 2 else (1, 2)
    least = _STRIP_ROWS * threads
    if out.dtype.itemsize == 2 and (out.ndim > 2 or rows < _SHORT_ROWS):
        return rows
    if out.device.type != "cpu" or rows < fewest * least:
        return rows
    return max(least, 16 * math.ceil(rows / _STRIPS / 16))
