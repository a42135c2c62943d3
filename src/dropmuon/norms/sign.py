"""The largest entry as a norm: sign descent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dropmuon.norms.precision import accumulation_dtype
from dropmuon.norms.scaling import ScaledNorm

__all__ = ["Sign"]


@dataclass(frozen=True, repr=False)
class Sign(ScaledNorm):
    """The largest magnitude of an entry, the 1->inf norm of a matrix; its dual is the l1 norm.

    `Sign(scale="mean-in")` is Scion's choice for the last layer.
    """

    def _norm(self, x: Tensor) -> Tensor:
        return x.to(accumulation_dtype(x)).abs().amax()

    def _dual(self, g: Tensor) -> Tensor:
        return g.to(accumulation_dtype(g)).abs().sum()

    def _direction(self, g: Tensor) -> Tensor:
        return g.detach().sign()
