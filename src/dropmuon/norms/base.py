"""What a norm is to the optimizer: a length, and the steepest direction of length one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from dropmuon.norms.describing import Described
from dropmuon.norms.precision import accumulation_dtype

__all__ = ["Norm", "inner"]


class Norm(Described, ABC):
    """The geometry of one parameter.

    A subclass is a frozen dataclass with `norm` and `direction`; the dual norm, the linear
    minimization oracle and the sharp operator follow from these two (the paper's "Useful Facts").
    Every method takes a tensor of the parameter's shape, leaves it as it is, and answers with a
    new tensor of the same shape and type, or with a scalar in at least float32.
    """

    @abstractmethod
    def norm(self, x: Tensor) -> Tensor:
        """||x||, as a tensor without dimensions."""

    @abstractmethod
    def direction(self, g: Tensor) -> Tensor:
        """The d with ||d|| = 1 that maximises <g, d>, so <g, d> = ||g||_*; zero if g is zero."""

    def directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """`direction` of each tensor; a norm that is faster on many at once overrides it."""
        return [self.direction(g) for g in gs]

    def dual(self, g: Tensor) -> Tensor:
        """||g||_* = max <g, x> over ||x|| <= 1, as a tensor without dimensions."""
        return inner(g, self.direction(g))

    def lmo(self, g: Tensor, radius: float | Tensor) -> Tensor:
        """The minimiser of <g, x> over the ball ||x|| <= radius."""
        return self.direction(g) * -radius

    def sharp(self, g: Tensor) -> Tensor:
        """The sharp operator, argmax <g, x> - ||x||^2 / 2: the direction, ||g||_* long."""
        direction = self.direction(g)
        wide = accumulation_dtype(g)
        return (direction.to(wide) * inner(g, direction)).to(g.dtype)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>, the sum of products of entries, in at least float32."""
    wide = accumulation_dtype(x)
    return (x.to(wide) * y.to(wide)).sum()
