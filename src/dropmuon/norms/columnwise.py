"""Columns measured one by one: for weights whose columns are looked up, such as one-hot inputs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dropmuon.norms.lengths import length, unit
from dropmuon.norms.matrices import MatrixNorm, as_matrices

__all__ = ["ColumnWise"]


@dataclass(frozen=True, repr=False)
class ColumnWise(MatrixNorm):
    """The 1->2 norm, the largest l2 norm of a column; its dual is the sum over the columns.

    A vector is one column. `scale="rms-out"` measures columns by their root mean square.
    """

    def _norms(self, matrices: Tensor) -> Tensor:
        return length(matrices, dim=-2).amax(-1)

    def _steepest(self, matrices: Tensor) -> Tensor:
        return unit(matrices, dim=-2)

    def _dual(self, g: Tensor) -> Tensor:
        return length(as_matrices(g, self.blocks), dim=-2).sum()
