"""Norms of matrices, and how a parameter of any shape is read as one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from dropmuon.norms.scaling import Scale, ScaledNorm

__all__ = ["Blocks", "MatrixNorm", "as_matrices"]

Blocks = int | Literal["batch"]


@dataclass(frozen=True, repr=False)
class MatrixNorm(ScaledNorm):
    """A norm of matrices, or of block-diagonal ones: the largest over the blocks.

    The dual norm of a block-diagonal matrix is then the sum over the blocks, and its steepest
    direction that of each block. `blocks` says which blocks a parameter has, see `as_matrices`.
    The scale is a function of the shape of one block.
    """

    scale: Scale = field(default=1.0, kw_only=True)
    blocks: Blocks = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.blocks, int) and self.blocks >= 1
        if not whole and self.blocks != "batch":
            raise ValueError(f"blocks must be a positive integer or 'batch', got {self.blocks!r}")

    @abstractmethod
    def _norms(self, matrices: Tensor) -> Tensor:
        """The norms, (blocks,), of matrices of shape (blocks, m, n)."""

    @abstractmethod
    def _steepest(self, matrices: Tensor) -> Tensor:
        """The steepest directions of matrices of shape (blocks, m, n), without scale."""

    def _norm(self, x: Tensor) -> Tensor:
        return self._norms(as_matrices(x, self.blocks)).amax()

    def _direction(self, g: Tensor) -> Tensor:
        return self._steepest(as_matrices(g, self.blocks)).reshape(g.shape)

    def _shape(self, x: Tensor) -> tuple[int, int]:
        _, out, in_ = as_matrices(x, self.blocks).shape
        return out, in_


def as_matrices(x: Tensor, blocks: Blocks = 1) -> Tensor:
    """A non-empty tensor as matrices (blocks, m, n), without a copy where strides allow.

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
