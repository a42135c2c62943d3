"""Arithmetic for all norms: sums never in less than float32, lengths that never overflow."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accumulation_dtype", "check_precision", "inner", "length", "matmul_dtype", "unit"]

Dim = int | tuple[int, ...]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Return float64 for float64 tensors, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def matmul_dtype(x: Tensor, precision: torch.dtype | None) -> torch.dtype:
    """Return the type to multiply matrices in: `precision` if given, else a fast and safe one.

    A 16-bit tensor is multiplied in bfloat16 on CUDA only. On a CPU a bfloat16 product may be
    hundreds of times slower than a float32 one, and on some it is an illegal instruction.
    """
    if precision is not None:
        return precision
    if x.device.type == "cuda" and x.dtype in (torch.float16, torch.bfloat16):
        return torch.bfloat16
    return accumulation_dtype(x)


def check_precision(precision: torch.dtype | None) -> None:
    """Reject a `precision` that is not a floating-point type."""
    if precision is not None and precision not in _FLOATS:
        accepted = ", ".join(map(str, _FLOATS))
        raise ValueError(f"precision must be None or one of {accepted}, got {precision!r}")


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return <x, y>, the sum of the products of entries, in at least float32."""
    wide = accumulation_dtype(x)
    return (x.to(wide) * y.to(wide)).sum()


def length(x: Tensor, dim: Dim | None = None) -> Tensor:
    """Return the l2 norm over `dim` (all dimensions by default), in at least float32.

    Entries are divided by the largest before they are squared: the square of 1e-25 is zero in
    float32, and that of 1e25 infinite.
    """
    scaled, peak = _scaled(x, dim)
    lengths: Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True) * peak
    return lengths.squeeze(tuple(range(x.ndim)) if dim is None else dim)


@torch.no_grad()
def unit(x: Tensor, dim: Dim | None = None) -> Tensor:
    """Return `x` over its l2 norm along `dim`, in at least float32; zero where x is zero."""
    scaled, _ = _scaled(x, dim)
    lengths = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled.div_(lengths.clamp_(min=torch.finfo(scaled.dtype).tiny))


def _scaled(x: Tensor, dim: Dim | None) -> tuple[Tensor, Tensor]:
    """Return x / peak as a new tensor, and peak, the largest magnitude along `dim`."""
    x = x.to(accumulation_dtype(x))
    peak = x.abs().amax(dim=() if dim is None else dim, keepdim=True)  # faster than an inf-norm
    return x / peak.clamp(min=torch.finfo(x.dtype).tiny), peak
