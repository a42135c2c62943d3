"""Norms with a scale: the unit ball grown by a factor that may depend on the matrix shape."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from dropmuon.checks import unknown_name
from dropmuon.norms.base import Norm, inner

__all__ = ["SCALES", "Scale", "ScaledNorm", "scale_factor"]

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


@dataclass(frozen=True, repr=False)
class ScaledNorm(Norm):
    """A norm ||x|| / s, whose directions are s times as long, and whose dual is s ||g||_*.

    `scale` is s: a number, a name in `SCALES`, or a function of the matrix shape (out, in). A
    tensor of shape (out, ...) counts as a matrix (out, the rest), a vector as a column (n, 1), so
    that `Euclidean(scale="rms")` measures a bias by its root mean square.

    A subclass describes the geometry for s = 1 in `_norm`, `_direction` and, where there is a
    closed form, `_dual`; these never see an empty tensor and may answer in a wider type.
    """

    scale: Scale = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            if self.scale not in SCALES:
                raise unknown_name("scale", self.scale, SCALES)
        elif not callable(self.scale):
            object.__setattr__(self, "scale", _positive(self.scale))

    def norm(self, x: Tensor) -> Tensor:
        """||x|| / s, as a tensor without dimensions."""
        return self._norm(x) / self._factor(x) if x.numel() else inner(x, x)

    def dual(self, g: Tensor) -> Tensor:
        """s ||g||_*, as a tensor without dimensions."""
        return self._dual(g) * self._factor(g) if g.numel() else inner(g, g)

    def direction(self, g: Tensor) -> Tensor:
        """The steepest direction, s long in the norm without scale."""
        return self.directions([g])[0]

    def directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """`direction` of each tensor, through the subclass's batched form where it has one."""
        some = [g for g in gs if g.numel()]
        found = iter(self._directions(some))
        return [self._finish(next(found), g) if g.numel() else g.detach().clone() for g in gs]

    @abstractmethod
    def _norm(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _direction(self, g: Tensor) -> Tensor: ...

    def _directions(self, gs: Sequence[Tensor]) -> list[Tensor]:
        return [self._direction(g) for g in gs]

    def _dual(self, g: Tensor) -> Tensor:
        return inner(g, self._direction(g))

    def _shape(self, x: Tensor) -> tuple[int, int]:
        """The shape (out, in) that the scale is a function of."""
        out = x.shape[0] if x.ndim else 1
        return out, x.numel() // out

    def _factor(self, x: Tensor) -> float:
        return scale_factor(self.scale, *self._shape(x))

    def _finish(self, direction: Tensor, g: Tensor) -> Tensor:
        factor = self._factor(g)
        return (direction if factor == 1.0 else direction * factor).to(g.dtype)


def scale_factor(scale: Scale, out: int, in_: int) -> float:
    """The value of a scale for a matrix with `out` rows and `in_` columns."""
    if isinstance(scale, str):
        return SCALES[scale](out, in_)
    return _positive(scale(out, in_)) if callable(scale) else scale


def _positive(scale: float) -> float:
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    return float(scale)
