"""What every norm has: a length, the unit direction of steepest ascent, and a scale."""

from __future__ import annotations

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dropmuon.checks import unknown_name
from dropmuon.norms.numerics import accumulation_dtype, inner

__all__ = ["SCALES", "Norm", "Reach", "Scale", "ScaledNorm", "StableRepr"]

Scale = float | str | Callable[[int, int], float]

SCALES: dict[str, Callable[[int, int], float]] = {
    # Jordan 2024: a tall matrix moves as far per entry as a square one.
    "muon": lambda out, in_: math.sqrt(max(1.0, out / in_)),
    # Inputs, outputs or both measured by root mean square (Scion, modular norms).
    "rms": lambda out, in_: math.sqrt(out / in_),
    "rms-in": lambda _, in_: 1.0 / math.sqrt(in_),
    "rms-out": lambda out, _: math.sqrt(out),
    # Inputs measured by mean magnitude: Scion's sign step for the last layer.
    "mean-in": lambda _, in_: 1.0 / in_,
    # Moonlight (arXiv 2502.16982): an orthogonal step with the entries' RMS usual for AdamW.
    "adamw": lambda out, in_: 0.2 * math.sqrt(max(out, in_)),
}

_NO_RHO = (
    "{} must define rho(shape) for the stochastic theorem; return the two constants of ||x||_2 "
    "against ||x||"
)


class StableRepr:
    """A dataclass with a complete `repr`, the same in every process, and a short `str`.

    `str` shows only the fields that differ from their defaults.
    """

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        body = ", ".join(f"{f.name}={_stable(getattr(self, f.name))}" for f in fields if f.repr)
        return f"{type(self).__name__}({body})"

    def __str__(self) -> str:
        default = type(self)()
        fields = [f.name for f in dataclasses.fields(self) if f.repr]  # type: ignore[arg-type]
        special = [name for name in fields if getattr(self, name) != getattr(default, name)]
        body = ", ".join(f"{name}={getattr(self, name)}" for name in special)
        return f"{type(self).__name__}({body})" if body else type(self).__name__


class Reach(NamedTuple):
    """The axes along which the entries of a unit direction depend on each other.

    `by_length` says how: it is the tensor over its l2 length along these axes, times the scale.
    """

    axes: tuple[int, ...]
    by_length: bool = False


class Norm(StableRepr, ABC):
    """The geometry of one parameter.

    A subclass is a frozen dataclass with `norm` and `unit_direction`; the dual norm, the linear
    minimization oracle and the sharp operator follow from these two (the paper's "Useful Facts").
    Every method takes a tensor of the parameter's shape, leaves it unchanged, and returns either a
    new tensor of the same shape and type, or a scalar in at least float32.
    """

    @abstractmethod
    def norm(self, x: Tensor) -> Tensor:
        """Return ||x||, as a tensor without dimensions."""

    @abstractmethod
    def unit_direction(self, g: Tensor) -> Tensor:
        """Return the d with ||d|| = 1 that maximises <g, d>, to ||g||_*; zero if g is zero."""

    def unit_directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """Return the unit direction of each tensor; override it where batches are faster."""
        return [self.unit_direction(g) for g in gs]

    def dual(self, g: Tensor) -> Tensor:
        """Return ||g||_* = max <g, x> over ||x|| <= 1, as a tensor without dimensions."""
        return inner(g, self.unit_direction(g))

    def rho(self, shape: Sequence[int]) -> tuple[float, float]:
        """Return the largest rho_low and the least rho_high for tensors x of this shape with

            rho_low ||x|| <= ||x||_2 <= rho_high ||x||,

        as the stochastic theorem compares norms with the Euclidean one (Assumption "bounded_var").
        """
        raise NotImplementedError(_NO_RHO.format(type(self).__name__))

    def exact_dual(self, g: Tensor) -> Tensor:
        """Return ||g||_* exactly, even where `unit_direction` and thus `dual` are approximate."""
        return self.dual(g)

    def direction_cost(self, x: Tensor) -> float:
        """Return the multiplications that a unit direction needs beyond a few per entry.

        Zero, unless matrices are multiplied or decomposed.
        """
        return 0.0

    def reach(self, shape: Sequence[int]) -> Reach:
        """Return which entries of a tensor of this shape a unit direction must see together.

        What does not matter to each other can be computed apart, as where a tensor is sharded.
        """
        return Reach(tuple(range(len(shape))))

    def factor(self, shape: Sequence[int]) -> float:
        """Return by how much unit directions are longer than without scale, for this shape."""
        return 1.0

    def lmo(self, g: Tensor, radius: float | Tensor) -> Tensor:
        """Return the minimiser of <g, x> over the ball ||x|| <= radius."""
        return self.unit_direction(g) * -radius

    def sharp(self, g: Tensor) -> Tensor:
        """Return argmax <g, x> - ||x||^2 / 2: the unit direction, ||g||_* times as long."""
        direction = self.unit_direction(g)
        wide = accumulation_dtype(g)
        return (direction.to(wide) * inner(g, direction)).to(g.dtype)


@dataclass(frozen=True, repr=False)
class ScaledNorm(Norm):
    """A norm ||x|| / s, whose unit directions are s times as long, and whose dual is s ||g||_*.

    `scale` is s: a number, a name in `SCALES`, or a function of the matrix shape (out, in). A
    tensor of shape (out, ...) counts as a matrix (out, the rest), a vector as a column (n, 1), so
    that `Euclidean(scale="rms")` measures a bias by its root mean square.

    A subclass describes the geometry for s = 1 in `_norm`, `_unit_direction` and, where there is a
    closed form, `_dual`; these never receive an empty tensor and may return a wider type.
    """

    scale: Scale = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            if self.scale not in SCALES:
                raise unknown_name("scale", self.scale, SCALES)
        elif not callable(self.scale):
            object.__setattr__(self, "scale", _positive(self.scale))

    def norm(self, x: Tensor) -> Tensor:
        """Return ||x|| / s, as a tensor without dimensions."""
        return self._norm(x) / self._factor(x) if x.numel() else inner(x, x)

    def dual(self, g: Tensor) -> Tensor:
        """Return s ||g||_*, as a tensor without dimensions."""
        return self._dual(g) * self._factor(g) if g.numel() else inner(g, g)

    def unit_direction(self, g: Tensor) -> Tensor:
        """Return the unit direction, which is s long in the norm without scale."""
        return self.unit_directions([g])[0]

    def unit_directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """Return the unit direction of each tensor, in batches where the subclass has them."""
        found = iter(self._unit_directions([g for g in gs if g.numel()]))
        return [self._stretch(next(found), g) if g.numel() else g.detach().clone() for g in gs]

    def rho(self, shape: Sequence[int]) -> tuple[float, float]:
        """Return s and s times the root of the number of unit pieces that fit into the unit ball.

        The norms of this package are at most the Euclidean one, and equal to it on one piece: an
        entry, a row, a column or a singular direction. Others define `rho`.
        """
        x = torch.empty(tuple(shape), device="meta")
        if not x.numel():
            raise ValueError(f"shape must have entries, got {tuple(shape)}; there is no norm of it")
        factor = self._factor(x)
        return factor, factor * math.sqrt(self._pieces(x))

    def factor(self, shape: Sequence[int]) -> float:
        return self._factor(torch.empty(tuple(shape), device="meta"))

    @abstractmethod
    def _norm(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _unit_direction(self, g: Tensor) -> Tensor: ...

    def _unit_directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        return [self._unit_direction(g) for g in gs]

    def _pieces(self, x: Tensor) -> int:
        """Return the largest ||x||_2^2 in the unit ball of the norm without scale."""
        raise NotImplementedError(_NO_RHO.format(type(self).__name__))

    def _dual(self, g: Tensor) -> Tensor:
        return inner(g, self._unit_direction(g))

    def _matrix_shape(self, x: Tensor) -> tuple[int, int]:
        """Return the shape (out, in) that the scale is a function of."""
        out = x.shape[0] if x.ndim else 1
        return out, x.numel() // out

    def _factor(self, x: Tensor) -> float:
        """Return s for a tensor of this shape."""
        if isinstance(self.scale, str):
            return SCALES[self.scale](*self._matrix_shape(x))
        if callable(self.scale):
            return _positive(self.scale(*self._matrix_shape(x)))
        return self.scale

    def _stretch(self, direction: Tensor, g: Tensor) -> Tensor:
        factor = self._factor(g)
        return (direction if factor == 1.0 else direction * factor).to(g.dtype)


def _positive(scale: float) -> float:
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    return float(scale)


def _stable(value: object) -> str:
    """Return `repr(value)`, but a function's dotted name, and never a memory address."""
    name = getattr(value, "__qualname__", None)
    if callable(value) and name is not None:
        return f"{getattr(value, '__module__', None)}.{name}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
