"""Euclidean lengths that neither overflow nor underflow, and vectors brought to length one."""

from __future__ import annotations

import torch
from torch import Tensor

from dropmuon.norms.precision import accumulation_dtype

__all__ = ["length", "unit"]

Dim = int | tuple[int, ...]


def length(x: Tensor, dim: Dim | None = None) -> Tensor:
    """The l2 norm over `dim` (all dimensions by default), in at least float32.

    Entries are divided by the largest before they are squared: the square of 1e-25 is zero in
    float32, and that of 1e25 infinite.
    """
    scaled, peak = _scaled(x, dim)
    lengths: Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True) * peak
    return lengths.squeeze(tuple(range(x.ndim)) if dim is None else dim)


@torch.no_grad()
def unit(x: Tensor, dim: Dim | None = None) -> Tensor:
    """`x` over its l2 norm along `dim`: a new tensor in at least float32; zero where x is zero."""
    scaled, _ = _scaled(x, dim)
    lengths = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled.div_(lengths.clamp_(min=torch.finfo(scaled.dtype).tiny))


def _scaled(x: Tensor, dim: Dim | None) -> tuple[Tensor, Tensor]:
    """(x / peak, peak) with the largest magnitude along `dim` as peak; always a new tensor."""
    x = x.to(accumulation_dtype(x))
    peak = x.abs().amax(dim=() if dim is None else dim, keepdim=True)  # faster than an inf-norm
    return x / peak.clamp(min=torch.finfo(x.dtype).tiny), peak
