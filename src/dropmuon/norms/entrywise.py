"""Entries, whatever the shape: Euclidean norm (SGD), largest entry (sign descent), and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dropmuon.norms.base import Reach, ScaledNorm, StableRepr
from dropmuon.norms.numerics import accumulation_dtype, length, unit

__all__ = ["AdamW", "Euclidean", "Sign"]


@dataclass(frozen=True, repr=False)
class Euclidean(ScaledNorm):
    """The l2 norm of all entries (Frobenius, for matrices), its own dual.

    `Euclidean(scale="rms")` measures a vector by its root mean square, Scion's norm for biases.
    """

    def reach(self, shape: Sequence[int]) -> Reach:
        return Reach(tuple(range(len(shape))), by_length=True)

    def _norm(self, x: Tensor) -> Tensor:
        return length(x)

    def _pieces(self, x: Tensor) -> int:
        return 1

    def _dual(self, g: Tensor) -> Tensor:
        return length(g)

    def _unit_direction(self, g: Tensor) -> Tensor:
        return unit(g)


@dataclass(frozen=True, repr=False)
class Sign(ScaledNorm):
    """The largest magnitude of an entry, the 1->inf norm of a matrix; its dual is the l1 norm.

    `Sign(scale="mean-in")` is Scion's choice for the last layer.
    """

    def reach(self, shape: Sequence[int]) -> Reach:
        return Reach(())

    def _norm(self, x: Tensor) -> Tensor:
        return x.to(accumulation_dtype(x)).abs().amax()

    def _pieces(self, x: Tensor) -> int:
        return x.numel()

    def _dual(self, g: Tensor) -> Tensor:
        return g.to(accumulation_dtype(g)).abs().sum()

    def _unit_direction(self, g: Tensor) -> Tensor:
        return g.detach().sign()


@dataclass(frozen=True, repr=False)
class AdamW(StableRepr):
    """A mark for parameters that the optimizer moves by AdamW's rule instead of by a norm.

    It is not a norm: it has no ball and no oracle, only AdamW's hyperparameters (`betas`, the decay
    rates of the two moments, and `eps`, added to the root of the second). The marked parameters
    stay in their layers and are frozen by the same sampler as all others.
    """

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        betas = tuple(float(beta) for beta in self.betas)
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
        if not 0.0 <= self.eps < float("inf"):
            raise ValueError(f"eps must be at least 0 and finite, got {self.eps!r}")
        object.__setattr__(self, "betas", betas)
        object.__setattr__(self, "eps", float(self.eps))
