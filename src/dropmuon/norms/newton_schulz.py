"""Orthogonalisation by odd polynomials: matrix products only, no decomposition."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from dropmuon.norms.polar import Orthogonalizer

__all__ = ["CUBIC", "JORDAN", "Coefficients", "Iteration", "NewtonSchulz", "Polynomial"]

Polynomial = tuple[float, ...]
"""(a, b) or (a, b, c): the odd polynomial a x + b x^3 + c x^5 of the singular values."""

Coefficients = Sequence[float] | Sequence[Sequence[float]]

JORDAN: Polynomial = (3.4445, -4.7750, 2.0315)
"""Jordan 2024, kellerjordan.github.io/posts/muon: steep at zero, ends between 0.7 and 1.2."""

CUBIC: Polynomial = (1.5, -0.5)
"""The classical iteration of Kovarik 1970 and Bjorck and Bowie 1971: slower, converges to one."""

_GRAM_ASPECT = 2.5
"""Columns per row from which the Gram matrix is iterated on, see `Iteration`."""

_GRAM_ROWS = 64
"""Rows from which it pays: below, the calls take longer than the products."""

_GRAM_GROWTH = 200.0
"""By how much rounding errors in a Gram matrix may grow before it is computed afresh."""


@dataclass(frozen=True, repr=False)
class Iteration(Orthogonalizer):
    """X <- a X + (b A + c A^2) X with A = X X^T, for one polynomial (a, b, c) after the other.

    Products of the plain loop cost 4 m^2 n + 2 m^3 operations a step. For wide matrices it is
    cheaper to iterate on A (m, m) alone, A <- P A P and Q <- P Q with P = a I + b A + c A^2, and
    to apply Q to X at the end: 8 m^3 a step, and 4 m^2 n once, so it needs fewer operations from
    n = 1.5 m on, and takes less time from about n = 2.5 m on. Squaring loses small singular
    values: the rounding error of A grows a^2-fold in a step. So Q is applied, and A computed
    afresh, before that growth exceeds 200: after 3 of Jordan's steps, which keeps the
    difference to the plain loop within the rounding error of either. `gram` forces this on or
    off; None decides by the shape, and never squares in 16 bits.
    """

    gram: bool | None = field(default=None, kw_only=True)

    @abstractmethod
    def polynomials(self) -> tuple[Polynomial, ...]:
        """The polynomials of all steps, in order."""

    def _orthogonalize(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, *x.shape[-2:]) if x.ndim != 2 else x
        flat = flat[0] if flat.ndim == 3 and len(flat) == 1 else flat
        iterate = _iterate_on_gram if self._uses_gram(x) else _iterate
        return iterate(flat, self.polynomials()).reshape(x.shape)

    def _uses_gram(self, x: Tensor) -> bool:
        if self.gram is not None:
            return self.gram
        rows, columns = x.shape[-2:]
        wide = columns >= _GRAM_ASPECT * rows and rows >= _GRAM_ROWS
        return wide and torch.finfo(x.dtype).eps < 1e-6


@dataclass(frozen=True, repr=False)
class NewtonSchulz(Iteration):
    """Newton-Schulz with fixed coefficients, Jordan's quintic by default.

    `coefficients` is one polynomial, (a, b) or (a, b, c), for all steps, or a sequence with one
    per step. `steps` is 5 for one quintic, 20 for one cubic, the length of a sequence; the last of
    a sequence is repeated if there are more steps.
    """

    coefficients: Coefficients = JORDAN
    steps: int | None = None

    def __post_init__(self) -> None:
        single, rows = _checked(self.coefficients)
        default = (20 if len(rows[0]) == 2 else 5) if single else len(rows)
        steps = default if self.steps is None else self.steps
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps must be a positive integer or None, got {steps!r}")
        object.__setattr__(self, "coefficients", rows[0] if single else rows)
        object.__setattr__(self, "steps", steps)

    def polynomials(self) -> tuple[Polynomial, ...]:
        """The polynomials of all steps, in order."""
        first, steps = self.coefficients[0], cast(int, self.steps)
        rows = cast(
            tuple[Polynomial, ...],
            (self.coefficients,) if isinstance(first, float) else self.coefficients,
        )
        return (rows + rows[-1:] * (steps - len(rows)))[:steps]


def _checked(coefficients: Coefficients) -> tuple[bool, tuple[Polynomial, ...]]:
    """Whether one polynomial was given, and the polynomials as tuples of floats."""
    try:
        single = len(coefficients) > 0 and isinstance(coefficients[0], int | float)
        rows = tuple(
            tuple(float(value) for value in row)
            for row in cast(Sequence[Sequence[float]], [coefficients] if single else coefficients)
        )
    except (TypeError, ValueError):
        single, rows = False, ()
    if not rows or any(len(r) not in (2, 3) or not all(map(math.isfinite, r)) for r in rows):
        raise ValueError(
            "coefficients must be finite numbers (a, b) or (a, b, c), or a sequence of such, "
            f"got {coefficients!r}"
        )
    return single, rows


def _iterate(x: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """The plain loop on x (m, n) or (batch, m, n), which is overwritten."""
    spare = torch.empty_like(x, memory_format=torch.contiguous_format)
    for a, *rest in polynomials:
        update = _even_part(x @ x.mT, rest)
        _multiply_add(x, update, x, beta=a, out=spare)
        x, spare = spare, x
    return x


def _iterate_on_gram(x: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """The same polynomials, accumulated in a small matrix Q (m, m) that is applied to x at last."""
    for part in _parts(polynomials):
        gram = x @ x.mT
        product: Tensor | None = None
        for index, (a, *rest) in enumerate(part):
            update = _even_part(gram, rest)
            if index < len(part) - 1:
                half = _multiply_add(gram, update, gram, beta=a)
                gram = _multiply_add(half, half, update, beta=a)
            if product is None:
                update.diagonal(dim1=-2, dim2=-1).add_(a)
                product = update
            else:
                product = _multiply_add(product, update, product, beta=a)
        x = cast(Tensor, product) @ x
    return x


def _parts(polynomials: Sequence[Polynomial]) -> Iterator[list[Polynomial]]:
    """Runs of steps over which rounding errors in the Gram matrix stay small."""
    part: list[Polynomial] = []
    growth = 1.0
    for polynomial in polynomials:
        if part and growth > _GRAM_GROWTH:
            yield part
            part, growth = [], 1.0
        part.append(polynomial)
        growth *= polynomial[0] ** 2
    yield part


def _even_part(gram: Tensor, rest: Sequence[float]) -> Tensor:
    """A new tensor b A, or b A + c A^2."""
    if len(rest) == 1:
        return gram * rest[0]
    return _multiply_add(gram, gram, gram, beta=rest[0], alpha=rest[1])


def _multiply_add(
    x: Tensor, y: Tensor, z: Tensor, *, beta: float, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """beta x + alpha y z, for matrices or batches of them."""
    if x.ndim == 2:
        return torch.addmm(x, y, z, beta=beta, alpha=alpha, out=out)
    return torch.baddbmm(x, y, z, beta=beta, alpha=alpha, out=out)
