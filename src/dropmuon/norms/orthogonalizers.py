"""Orthogonalisers: singular values replaced by one, exactly or by iteration.

`orthogonalize` is the entry point; the polynomials of the iterations are in `numerics`, their
products in `iterations`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from dropmuon.checks import unknown_name, whole_number
from dropmuon.norms.base import StableRepr
from dropmuon.norms.iterations import GRAM_GROWTH, iterate, iterate_on_gram
from dropmuon.norms.numerics import (
    CUBIC,
    JORDAN,
    Polynomial,
    at_most_one,
    matmul_dtype,
    no_autocast,
    polar_express_coefficients,
    unit,
)

__all__ = [
    "ORTHOGONALIZERS",
    "SVD",
    "NewtonSchulz",
    "Orthogonalize",
    "Orthogonalizer",
    "PolarExpress",
    "choose_orthogonalizer",
    "orthogonalize",
]

Coefficients = Sequence[float] | Sequence[Sequence[float]]

_GRAM_ASPECT = 1.75
"""Columns per row from which the Gram matrix is iterated on, see `iterate_on_gram`."""

_GRAM_ROWS = 64
"""Rows from which it pays off: below, the calls take longer than the products."""

_FAST_GROWTH = 2e4
"""`GRAM_GROWTH` for degree 9, whose three steps then make one run: errors of up to 0.01, in a
method whose singular values are within 0.2 of one."""


class Orthogonalizer(StableRepr, ABC):
    """A method that replaces the singular values of matrices by one, or by about one.

    X = U S V^T of shape (..., m, n) becomes U V^T in the shape and type of X; X is left unchanged.
    Vectors (m or n = 1) are exactly normalised, zero matrices stay zero. A subclass implements
    `_orthogonalize` for wide matrices (m <= n) of Frobenius norm one that it may overwrite; one
    that needs no such norm replaces `_scaled`.
    """

    @torch.no_grad()
    def __call__(self, x: Tensor, precision: torch.dtype | None = None) -> Tensor:
        """Orthogonalise `x`, with products in `precision` or in a type chosen by the device."""
        if x.numel() == 0:
            return x.clone()
        rows, columns = x.shape[-2:]
        if min(rows, columns) == 1:
            return unit(x, dim=(-2, -1)).to(x.dtype)
        dtype = self._dtype(x, precision)
        wide = self._scaled(x, dtype)
        with no_autocast([x.device.type]):
            polar = self._orthogonalize((wide.mT if rows > columns else wide).to(dtype))
        return (polar.mT if rows > columns else polar).to(x.dtype)

    @abstractmethod
    def _orthogonalize(self, x: Tensor) -> Tensor: ...

    def _scaled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return x over its norm as a new tensor, in at least float32; it is cast to `dtype`."""
        return unit(x, dim=(-2, -1))

    def _dtype(self, x: Tensor, precision: torch.dtype | None) -> torch.dtype:
        return matmul_dtype(x, precision)


@dataclass(frozen=True, repr=False)
class SVD(Orthogonalizer):
    """The polar factor from a singular value decomposition, in at least float32.

    Directions whose singular value is rounding noise (at most max(m, n) * eps * the largest) are
    dropped, so that <X, U V^T> is the nuclear norm of X whatever its rank.
    """

    def _orthogonalize(self, x: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        noise = max(x.shape[-2:]) * torch.finfo(x.dtype).eps * s[..., :1]
        polar: Tensor = (u * (s > noise).to(u.dtype).unsqueeze(-2)) @ vh
        return polar

    def _dtype(self, x: Tensor, precision: torch.dtype | None) -> torch.dtype:
        return torch.promote_types(matmul_dtype(x, precision), torch.float32)


@dataclass(frozen=True, repr=False)
class _Iteration(Orthogonalizer):
    """Odd polynomials applied one after the other: matrix products only, no decomposition.

    `gram` forces the iteration on the small Gram matrix (`iterate_on_gram`) on or off; None
    decides by the shape, and never squares in 16 bits.
    """

    gram: bool | None = field(default=None, kw_only=True)

    @abstractmethod
    def polynomials(self) -> tuple[Polynomial, ...]:
        """Return the polynomials of all steps, in order."""

    def _orthogonalize(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, *x.shape[-2:]) if x.ndim != 2 else x
        flat = flat[0] if flat.ndim == 3 and len(flat) == 1 else flat
        return self._iterated(flat, self.polynomials()).reshape(x.shape)

    def _iterated(self, x: Tensor, polynomials: tuple[Polynomial, ...]) -> Tensor:
        return (iterate_on_gram if self._uses_gram(x) else iterate)(x, polynomials)

    def _uses_gram(self, x: Tensor) -> bool:
        if self.gram is not None:
            return self.gram
        rows, columns = x.shape[-2:]
        wide = columns >= _GRAM_ASPECT * rows and rows >= _GRAM_ROWS
        return wide and not _is_short(x.dtype)


def _is_short(dtype: torch.dtype) -> bool:
    """Return whether squares, and high powers that cancel, would lose too much in a type."""
    return torch.finfo(dtype).eps > 1e-6


@dataclass(frozen=True, repr=False)
class NewtonSchulz(_Iteration):
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
        steps = default if self.steps is None else whole_number("steps", self.steps)
        object.__setattr__(self, "coefficients", rows[0] if single else rows)
        object.__setattr__(self, "steps", steps)

    def polynomials(self) -> tuple[Polynomial, ...]:
        """Return the polynomials of all steps, in order."""
        first, steps = self.coefficients[0], cast(int, self.steps)
        rows = cast(
            tuple[Polynomial, ...],
            (self.coefficients,) if isinstance(first, float) else self.coefficients,
        )
        return (rows + rows[-1:] * (steps - len(rows)))[:steps]


def _checked(coefficients: Coefficients) -> tuple[bool, tuple[Polynomial, ...]]:
    """Return whether one polynomial was given, and the polynomials as tuples of floats."""
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
            "coefficients must be finite numbers (a, b) or (a, b, c), or a sequence of these, "
            f"got {coefficients!r}"
        )
    return single, rows


@dataclass(frozen=True, repr=False)
class PolarExpress(_Iteration):
    """The composition of polynomials of Amsel et al. 2025, "The Polar Express" (arXiv 2505.16932).

    The first polynomial is the best approximation to one on [`lower`, 1], each later one on the
    interval that the former ones map to; so singular values above `lower` converge as fast as
    `steps` polynomials of that `degree`, 5 or 9, can make them. `safety` guards the steps against
    singular values that rounding errors raised above the interval.

    `lower` is measured in the Schatten norm that matrices are divided by first: 2, the Frobenius
    norm, or 8, which is closer to the largest singular value and costs no product. In 16 bits the
    terms of degree 9 would cancel, and A^2 underflow: there, either choice means the defaults.
    """

    steps: int = 5
    lower: float = 1e-3
    safety: float = 1.01
    degree: int = field(default=5, kw_only=True)
    schatten: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole_number("steps", self.steps))
        if not 0.0 < self.lower < 1.0:
            raise ValueError(f"lower must be between 0 and 1, got {self.lower!r}")
        if not 1.0 <= self.safety < 2.0:
            raise ValueError(f"safety must be in [1, 2), got {self.safety!r}")
        if self.degree not in (5, 9):
            raise ValueError(f"degree must be 5 or 9, got {self.degree!r}")
        if self.schatten not in (2, 8):
            raise ValueError(f"schatten must be 2 or 8, got {self.schatten!r}")

    def polynomials(self) -> tuple[Polynomial, ...]:
        """Return the polynomials of all steps, in order, safety included."""
        return polar_express_coefficients(self.steps, self.lower, self.safety, self.degree)

    def _scaled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if self.schatten == 8 and not _is_short(dtype):
            return at_most_one(x, dim=(-2, -1))[0]
        return super()._scaled(x, dtype)

    def _iterated(self, x: Tensor, polynomials: tuple[Polynomial, ...]) -> Tensor:
        if (self.degree, self.schatten) != (5, 2) and _is_short(x.dtype):
            plain = PolarExpress(gram=self.gram)
            return plain._iterated(x, plain.polynomials())
        if not self._uses_gram(x):
            return iterate(x, polynomials, schatten=self.schatten)
        growth = GRAM_GROWTH if self.degree == 5 else _FAST_GROWTH
        return iterate_on_gram(x, polynomials, schatten=self.schatten, growth=growth)


Orthogonalize = str | Orthogonalizer | Callable[[Tensor], Tensor] | Coefficients
"""What `orthogonalize=` accepts."""

ORTHOGONALIZERS: dict[str, Orthogonalizer] = {
    "svd": SVD(),
    "newton-schulz": NewtonSchulz(),
    "cubic": NewtonSchulz(CUBIC),
    "polar-express": PolarExpress(),
    "fast": PolarExpress(3, 2.2e-3, 1.001, degree=9, schatten=8),
}


def orthogonalize(
    x: Tensor, method: Orthogonalize = "newton-schulz", precision: torch.dtype | None = None
) -> Tensor:
    """Return matrices (..., m, n) with their singular values replaced by (about) one.

    `x` is left unchanged. A user's own function receives a private copy in the working type, and
    must return a tensor of its shape.
    """
    chosen = choose_orthogonalizer(method)
    if isinstance(chosen, Orthogonalizer):
        return chosen(x, precision)
    with torch.no_grad():
        found = chosen(x.to(matmul_dtype(x, precision), copy=True))
    if found.shape != x.shape:
        raise ValueError(
            f"orthogonalize must keep the shape {tuple(x.shape)}, "
            f"but {chosen!r} returned {tuple(found.shape)}"
        )
    return found.to(x.dtype)


def choose_orthogonalizer(method: Orthogonalize) -> Orthogonalizer | Callable[[Tensor], Tensor]:
    """Return the orthogonaliser for a name or coefficients; a callable is returned as it is."""
    if isinstance(method, str):
        if method not in ORTHOGONALIZERS:
            raise unknown_name("orthogonalize", method, ORTHOGONALIZERS)
        return ORTHOGONALIZERS[method]
    if callable(method):
        return method
    return NewtonSchulz(method)
