"""Orthogonalisers by name, by coefficients, or of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dropmuon.checks import unknown_name
from dropmuon.norms.newton_schulz import CUBIC, NewtonSchulz
from dropmuon.norms.polar import SVD, Orthogonalizer
from dropmuon.norms.polar_express import PolarExpress
from dropmuon.norms.precision import matmul_dtype

__all__ = ["ORTHOGONALIZERS", "Orthogonalize", "choose_orthogonalizer", "orthogonalize"]

Orthogonalize = (
    str | Orthogonalizer | Callable[[Tensor], Tensor] | Sequence[float] | Sequence[Sequence[float]]
)
"""What `orthogonalize=` accepts."""

ORTHOGONALIZERS: dict[str, Orthogonalizer] = {
    "svd": SVD(),
    "newton-schulz": NewtonSchulz(),
    "cubic": NewtonSchulz(CUBIC),
    "polar-express": PolarExpress(),
}


def choose_orthogonalizer(method: Orthogonalize) -> Orthogonalizer | Callable[[Tensor], Tensor]:
    """The orthogonaliser that a name or coefficients stand for; a callable stands for itself."""
    if isinstance(method, str):
        if method not in ORTHOGONALIZERS:
            raise unknown_name("orthogonalize", method, ORTHOGONALIZERS)
        return ORTHOGONALIZERS[method]
    if callable(method):
        return method
    return NewtonSchulz(method)


def orthogonalize(
    x: Tensor, method: Orthogonalize = "newton-schulz", precision: torch.dtype | None = None
) -> Tensor:
    """Replace the singular values of matrices (..., m, n) by (about) one; `x` is left as it is.

    A function of one's own gets a private copy in the working type, and must answer in its shape.
    """
    chosen = choose_orthogonalizer(method)
    if isinstance(chosen, Orthogonalizer):
        return chosen(x, precision)
    with torch.no_grad():
        answer = chosen(x.to(matmul_dtype(x, precision), copy=True))
    if answer.shape != x.shape:
        raise ValueError(
            f"orthogonalize must keep the shape {tuple(x.shape)}, "
            f"but {chosen!r} answered {tuple(answer.shape)}"
        )
    return answer.to(x.dtype)
