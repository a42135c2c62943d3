"""Norms made of another one: of what is stored transposed, and of what is stored together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dropmuon.checks import whole_number
from dropmuon.norms.base import Norm, Reach
from dropmuon.norms.matrices import Spectral

__all__ = ["Split", "Transposed"]


@dataclass(frozen=True, repr=False)
class Transposed(Norm):
    """A norm of matrices that are stored as (in, out), such as those of GPT-2's `Conv1D`.

    `base` sees them as (out, in): its scales, its rows and its columns are those of the linear map.
    The last two axes are swapped, so that a stack of matrices may be transposed too.
    """

    base: Norm = field(default_factory=Spectral)

    def norm(self, x: Tensor) -> Tensor:
        return self.base.norm(_swapped(x))

    def unit_direction(self, g: Tensor) -> Tensor:
        return _swapped(self.base.unit_direction(_swapped(g)))

    def unit_directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        return [_swapped(unit) for unit in self.base.unit_directions([_swapped(g) for g in gs])]

    def dual(self, g: Tensor) -> Tensor:
        return self.base.dual(_swapped(g))

    def exact_dual(self, g: Tensor) -> Tensor:
        return self.base.exact_dual(_swapped(g))

    def rho(self, shape: Sequence[int]) -> tuple[float, float]:
        return self.base.rho(_swapped(torch.empty(tuple(shape), device="meta")).shape)

    def reach(self, shape: Sequence[int]) -> Reach:
        axes = list(range(len(shape)))
        axes[-2:] = axes[-2:][::-1]
        found = self.base.reach([shape[axis] for axis in axes])
        return found._replace(axes=tuple(axes[axis] for axis in found.axes))

    def factor(self, shape: Sequence[int]) -> float:
        return self.base.factor(_swapped(torch.empty(tuple(shape), device="meta")).shape)

    def direction_cost(self, x: Tensor) -> float:
        return self.base.direction_cost(_swapped(x))

    def __str__(self) -> str:
        return f"Transposed({self.base})"


@dataclass(frozen=True, repr=False)
class Split(Norm):
    """The largest of one norm over pieces that are stored in one tensor, such as Q, K and V.

    A tensor is cut along the axis `dim` into `pieces` equal ones, or into pieces of those sizes:
    with grouped queries, K and V are smaller than Q. The dual norm is then the sum over the pieces,
    the unit direction consists of theirs, and the scale of `base` is that of each piece's own
    shape: the same step as if each piece were a parameter.
    """

    base: Norm = field(default_factory=Spectral)
    pieces: int | tuple[int, ...] = 1
    dim: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.pieces, int):
            whole_number("pieces", self.pieces, remedy="or give the size of each piece")
            return
        sizes = tuple(self.pieces)
        if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
            raise ValueError(
                f"pieces must be a number of equal pieces or their sizes, got {self.pieces!r}"
            )
        object.__setattr__(self, "pieces", sizes)

    def cut(self, x: Tensor) -> list[Tensor]:
        """Return the pieces of a tensor, as views."""
        length = x.shape[self.dim] if -x.ndim <= self.dim < x.ndim else 0
        count = self.pieces
        sizes = (length // count,) * count if isinstance(count, int) else count
        if not length or sum(sizes) != length:
            raise ValueError(
                f"pieces must make up dimension {self.dim}, got pieces={count} for shape "
                f"{tuple(x.shape)}"
            )
        return list(torch.split(x, list(sizes), dim=self.dim))

    def norm(self, x: Tensor) -> Tensor:
        return torch.stack([self.base.norm(piece) for piece in self.cut(x)]).amax()

    def unit_direction(self, g: Tensor) -> Tensor:
        return self.unit_directions([g])[0]

    def unit_directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        cuts = [self.cut(g) for g in gs]
        units = iter(self.base.unit_directions([piece for cut in cuts for piece in cut]))
        return [torch.cat([next(units) for _ in cut], dim=self.dim) for cut in cuts]

    def dual(self, g: Tensor) -> Tensor:
        return torch.stack([self.base.dual(piece) for piece in self.cut(g)]).sum()

    def exact_dual(self, g: Tensor) -> Tensor:
        return torch.stack([self.base.exact_dual(piece) for piece in self.cut(g)]).sum()

    def rho(self, shape: Sequence[int]) -> tuple[float, float]:
        cut = self.cut(torch.empty(tuple(shape), device="meta"))
        lows, highs = zip(*(self.base.rho(piece.shape) for piece in cut), strict=True)
        return min(lows), math.hypot(*highs)

    def direction_cost(self, x: Tensor) -> float:
        return sum(self.base.direction_cost(piece) for piece in self.cut(x))

    def __str__(self) -> str:
        return f"Split({self.base}, {self.pieces})"


def _swapped(x: Tensor) -> Tensor:
    """Return a view with the last two axes swapped; vectors have nothing to swap."""
    return x.mT if x.ndim >= 2 else x
