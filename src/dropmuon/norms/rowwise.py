"""Rows measured one by one: for weights with one row per token or per class."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dropmuon.norms.lengths import length, unit
from dropmuon.norms.matrices import MatrixNorm, as_matrices

__all__ = ["RowWise"]


@dataclass(frozen=True, repr=False)
class RowWise(MatrixNorm):
    """The 2->inf norm, the largest l2 norm of a row; its dual is the sum over the rows.

    `torch.nn.Embedding` keeps one token per row. In a vector every entry is a row, as in `Sign`.
    `scale="rms-in"` measures inputs by their root mean square.
    """

    def _norms(self, matrices: Tensor) -> Tensor:
        return length(matrices, dim=-1).amax(-1)

    def _steepest(self, matrices: Tensor) -> Tensor:
        return unit(matrices, dim=-1)

    def _dual(self, g: Tensor) -> Tensor:
        return length(as_matrices(g, self.blocks), dim=-1).sum()
