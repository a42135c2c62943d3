"""Norms of matrices: how a parameter is read as one, and the norms of its rows and columns.

The spectral norm is Muon's and, with scale "rms", that of the hidden layers of Scion.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dropmuon.checks import whole_number
from dropmuon.norms.base import Reach, Scale, ScaledNorm
from dropmuon.norms.numerics import accumulation_dtype, check_precision, inner, length, unit
from dropmuon.norms.orthogonalizers import (
    Orthogonalize,
    Orthogonalizer,
    choose_orthogonalizer,
    orthogonalize,
)

__all__ = ["Blocks", "ColumnWise", "MatrixNorm", "RowWise", "Spectral", "as_matrices"]

Blocks = int | Literal["batch"]

_STACK_BELOW = (2**23, 2**28)
"""m^2 n (m <= n) up to which a CPU is faster on a stack of matrices than on one after another.

With one thread, and with several: a stack is spread over them, matrix by matrix.
"""

_STACK_ENTRIES = 2**22
"""Entries of such a stack, at most: more gain nothing, and leave the cache."""


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

    def _sides(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the axes that make up a matrix's rows and its columns; None if blocks cut them."""
        if self.blocks == "batch" and len(shape) >= 2:
            return (len(shape) - 2,), (len(shape) - 1,)
        if self.blocks not in (1, "batch"):
            return None
        return tuple(range(min(len(shape), 1))), tuple(range(1, len(shape)))

    def _norm(self, x: Tensor) -> Tensor:
        return self._norms(as_matrices(x, self.blocks)).amax()

    def _unit_direction(self, g: Tensor) -> Tensor:
        return self._unit_matrices(as_matrices(g, self.blocks)).reshape(g.shape)

    def _matrix_shape(self, x: Tensor) -> tuple[int, int]:
        _, out, in_ = as_matrices(x, self.blocks).shape
        return out, in_


@dataclass(frozen=True, repr=False)
class _LineWise(MatrixNorm):
    """The largest l2 norm of the lines along one axis; its dual is the sum over the lines."""

    _axis: ClassVar[int]

    def reach(self, shape: Sequence[int]) -> Reach:
        sides = self._sides(shape)
        return super().reach(shape) if sides is None else Reach(sides[self._axis], by_length=True)

    def _norms(self, matrices: Tensor) -> Tensor:
        return length(matrices, dim=self._axis).amax(-1)

    def _unit_matrices(self, matrices: Tensor) -> Tensor:
        return unit(matrices, dim=self._axis)

    def _pieces(self, x: Tensor) -> int:
        blocks, rows, columns = as_matrices(x, self.blocks).shape
        return blocks * (rows if self._axis == -1 else columns)

    def _dual(self, g: Tensor) -> Tensor:
        return length(as_matrices(g, self.blocks), dim=self._axis).sum()


class RowWise(_LineWise):
    """The 2->inf norm, the largest l2 norm of a row; its dual is the sum over the rows.

    For weights with one row per token or class: `torch.nn.Embedding` keeps one token per row. In a
    vector every entry is a row, as in `Sign`. `scale="rms-in"` measures inputs by their root mean
    square.
    """

    _axis = -1


class ColumnWise(_LineWise):
    """The 1->2 norm, the largest l2 norm of a column; its dual is the sum over the columns.

    For weights of which an input selects columns, such as one-hot inputs. A vector is one column.
    `scale="rms-out"` measures columns by their root mean square.
    """

    _axis = -2


@dataclass(frozen=True, repr=False)
class Spectral(MatrixNorm):
    """The 2->2 norm, the largest singular value; its dual is the nuclear norm.

    `orthogonalize` finds the unit direction U V^T of G = U S V^T: "newton-schulz" (default,
    singular values between about 0.7 and 1.2), "fast" (0.8 to 1.2, in less time), "svd" (exact),
    "cubic", "polar-express", coefficients, an `Orthogonalizer` such as `NewtonSchulz(steps=7)`, or
    a function of matrices (m, n), which receives (blocks, m, n) where there are blocks. What is
    derived from the unit direction, including `dual`, is as exact as the orthogonaliser;
    `exact_dual` always sums the singular values. `scale="rms"` is the norm between root mean
    squares, sqrt(in / out) times the largest singular value. `precision` is the type to multiply
    matrices in: by default float32, but bfloat16 for 16-bit tensors on CUDA and float64 for float64
    tensors. A vector is a column, so its unit direction is g / ||g||_2.
    """

    orthogonalize: Orthogonalize = "newton-schulz"
    precision: torch.dtype | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "orthogonalize", choose_orthogonalizer(self.orthogonalize))
        check_precision(self.precision)

    def reach(self, shape: Sequence[int]) -> Reach:
        sides = self._sides(shape)
        if sides is None:
            return super().reach(shape)
        rows, columns = sides
        return Reach(rows + columns, by_length=not columns)

    def direction_cost(self, x: Tensor) -> float:
        """Return m^2 n per block of shape (m, n), m <= n: one product of an iteration."""
        if x.ndim < 2 or not x.numel():
            return 0.0
        blocks, *sides = as_matrices(x, self.blocks).shape
        shorter, longer = sorted(sides)
        return float(blocks * shorter**2 * longer) if shorter > 1 else 0.0

    def exact_dual(self, g: Tensor) -> Tensor:
        """Return the sum of all singular values, times the scale, by a decomposition."""
        if not g.numel():
            return inner(g, g)
        matrices = as_matrices(g.to(accumulation_dtype(g)), self.blocks)
        nuclear: Tensor = torch.linalg.svdvals(matrices).sum()
        return nuclear * self._factor(g)

    def _pieces(self, x: Tensor) -> int:
        blocks, *sides = as_matrices(x, self.blocks).shape
        return int(blocks * min(sides))

    def _norms(self, matrices: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.matrix_norm(matrices.to(accumulation_dtype(matrices)), ord=2)
        return norms

    def _unit_matrices(self, matrices: Tensor) -> Tensor:
        if len(matrices) == 1:
            return orthogonalize(matrices[0], self.orthogonalize, self.precision).unsqueeze(0)
        if _stacking_pays(matrices):
            return orthogonalize(matrices, self.orthogonalize, self.precision)
        return torch.stack([orthogonalize(m, self.orthogonalize, self.precision) for m in matrices])

    def _unit_directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        matrices = [as_matrices(g, self.blocks) for g in gs]
        found: dict[int, Tensor] = {}
        for indices in self._groups(matrices):
            stack = torch.cat([matrices[i] for i in indices])
            sizes = [len(matrices[i]) for i in indices]
            found.update(zip(indices, torch.split(self._unit_matrices(stack), sizes), strict=True))
        for i, matrix in enumerate(matrices):
            if i not in found:
                found[i] = self._unit_matrices(matrix)
        return [found[i].reshape(g.shape) for i, g in enumerate(gs)]

    def _groups(self, matrices: Sequence[Tensor]) -> list[list[int]]:
        """Return indices of matrices to orthogonalise together, in groups of at least two.

        A user's own function may not support batches: its matrices stay separate.
        """
        groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        if isinstance(self.orthogonalize, Orthogonalizer):
            for i, m in enumerate(matrices):
                if _stacking_pays(m):
                    groups[m.shape[-2:], m.dtype, m.device].append(i)
        stacks = []
        for indices in groups.values():
            count = _stack_size(matrices[indices[0]])
            stacks += [indices[i : i + count] for i in range(0, len(indices), count)]
        return [indices for indices in stacks if len(indices) > 1]


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


def _stacking_pays(matrices: Tensor) -> bool:
    rows, columns = sorted(matrices.shape[-2:])
    most = _STACK_BELOW[torch.get_num_threads() > 1]
    return matrices.device.type != "cpu" or rows * rows * columns <= most


def _stack_size(matrices: Tensor) -> int:
    """Return how many tensors of this shape to stack: all, on an accelerator."""
    if matrices.device.type != "cpu":
        return sys.maxsize
    return max(1, _STACK_ENTRIES // matrices.numel())
