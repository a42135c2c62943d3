"""Norms of the entries, whatever the shape: Euclidean (SGD) and largest entry (sign descent)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dropmuon.norms.base import ScaledNorm
from dropmuon.norms.numerics import accumulation_dtype, length, unit

__all__ = ["Euclidean", "Sign"]


@dataclass(frozen=True, repr=False)
class Euclidean(ScaledNorm):
    """The l2 norm of all entries (Frobenius, for matrices), its own dual.

    `Euclidean(scale="rms")` measures a vector by its root mean square, Scion's norm for biases.
    """

    def _norm(self, x: Tensor) -> Tensor:
        return length(x)

    def _dual(self, g: Tensor) -> Tensor:
        return length(g)

    def _unit_direction(self, g: Tensor) -> Tensor:
        return unit(g)


@dataclass(frozen=True, repr=False)
class Sign(ScaledNorm):
    """The largest magnitude of an entry, the 1->inf norm of a matrix; its dual is the l1 norm.

    `Sign(scale="mean-in")` is Scion's choice for the last layer.
    """

    def _norm(self, x: Tensor) -> Tensor:
        return x.to(accumulation_dtype(x)).abs().amax()

    def _dual(self, g: Tensor) -> Tensor:
        return g.to(accumulation_dtype(g)).abs().sum()

    def _unit_direction(self, g: Tensor) -> Tensor:
        return g.detach().sign()
