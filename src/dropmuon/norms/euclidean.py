"""The Euclidean norm: normalised stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dropmuon.norms.lengths import length, unit
from dropmuon.norms.scaling import ScaledNorm

__all__ = ["Euclidean"]


@dataclass(frozen=True, repr=False)
class Euclidean(ScaledNorm):
    """The l2 norm of all entries (Frobenius, for matrices), its own dual.

    `Euclidean(scale="rms")` measures a vector by its root mean square, Scion's norm for biases.
    """

    def _norm(self, x: Tensor) -> Tensor:
        return length(x)

    def _dual(self, g: Tensor) -> Tensor:
        return length(g)

    def _direction(self, g: Tensor) -> Tensor:
        return unit(g)
