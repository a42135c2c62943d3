"""Norms of matrices: how a parameter is read as one, and the norms of its rows and columns."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from dropmuon.checks import whole_number
from dropmuon.norms.base import Scale, ScaledNorm
from dropmuon.norms.numerics import length, unit

__all__ = ["Blocks", "ColumnWise", "MatrixNorm", "RowWise", "as_matrices"]

Blocks = int | Literal["batch"]


@dataclass(frozen=True, repr=False)
class MatrixNorm(ScaledNorm):
    """A norm of matrices, or of block-diagonal ones: the largest over the blocks.

    The dual norm of a block-diagonal matrix is then the sum over the blocks, and its unit direction
    consists of those of the blocks. `blocks` says which blocks a parameter has, see `as_matrices`.
    The scale is a function of the shape of one block.
    """

    scale: Scale = field(default=1.0, kw_only=True)
    blocks: Blocks = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks != "batch":
            remedy = "use 'batch' for a stack of matrices"
            object.__setattr__(self, "blocks", whole_number("blocks", self.blocks, remedy=remedy))

    @abstractmethod
    def _norms(self, matrices: Tensor) -> Tensor:
        """Return the norms, (blocks,), of matrices of shape (blocks, m, n)."""

    @abstractmethod
    def _unit_matrices(self, matrices: Tensor) -> Tensor:
        """Return the unit directions of matrices of shape (blocks, m, n), without scale."""

    def _norm(self, x: Tensor) -> Tensor:
        return self._norms(as_matrices(x, self.blocks)).amax()

    def _unit_direction(self, g: Tensor) -> Tensor:
        return self._unit_matrices(as_matrices(g, self.blocks)).reshape(g.shape)

    def _matrix_shape(self, x: Tensor) -> tuple[int, int]:
        _, out, in_ = as_matrices(x, self.blocks).shape
        return out, in_


@dataclass(frozen=True, repr=False)
class RowWise(MatrixNorm):
    """The 2->inf norm, the largest l2 norm of a row; its dual is the sum over the rows.

    For weights with one row per token or class: `torch.nn.Embedding` keeps one token per row. In a
    vector every entry is a row, as in `Sign`. `scale="rms-in"` measures inputs by their root mean
    square.
    """

    def _norms(self, matrices: Tensor) -> Tensor:
        return length(matrices, dim=-1).amax(-1)

    def _unit_matrices(self, matrices: Tensor) -> Tensor:
        return unit(matrices, dim=-1)

    def _dual(self, g: Tensor) -> Tensor:
        return length(as_matrices(g, self.blocks), dim=-1).sum()


@dataclass(frozen=True, repr=False)
class ColumnWise(MatrixNorm):
    """The 1->2 norm, the largest l2 norm of a column; its dual is the sum over the columns.

    For weights of which an input selects columns, such as one-hot inputs. A vector is one column.
    `scale="rms-out"` measures columns by their root mean square.
    """

    def _norms(self, matrices: Tensor) -> Tensor:
        return length(matrices, dim=-2).amax(-1)

    def _unit_matrices(self, matrices: Tensor) -> Tensor:
        return unit(matrices, dim=-2)

    def _dual(self, g: Tensor) -> Tensor:
        return length(as_matrices(g, self.blocks), dim=-2).sum()


def as_matrices(x: Tensor, blocks: Blocks = 1) -> Tensor:
    """Return a non-empty tensor as matrices (blocks, m, n), without a copy where strides allow.

    A tensor (out, ...) is one matrix (out, the rest): a convolution is (out, in * kh * kw). A
    vector is a column (n, 1), a scalar is (1, 1). An integer `blocks` cuts the rows into that many
    equal blocks: the groups of a grouped convolution. "batch" takes the last two dimensions for
    the matrix and the others for the blocks: stacked experts or heads.
    """
    if blocks == "batch" and x.ndim >= 2:
        return x.reshape(-1, *x.shape[-2:])
    count = 1 if blocks == "batch" else blocks
    out = x.shape[0] if x.ndim else 1
    if out % count:
        raise ValueError(
            f"blocks must divide the first dimension, got blocks={count} for shape {tuple(x.shape)}"
        )
    return x.reshape(count, out // count, x.numel() // out)
