"""Which floating-point type to compute in: sums never in less than float32."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accumulation_dtype", "check_precision", "matmul_dtype"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64 tensors, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def matmul_dtype(x: Tensor, precision: torch.dtype | None) -> torch.dtype:
    """The type to multiply matrices in: `precision` if given, else the fast and safe one.

    A 16-bit tensor is multiplied in bfloat16 on CUDA only. On a CPU a bfloat16 product may be
    hundreds of times slower than a float32 one, and on some it is an illegal instruction.
    """
    if precision is not None:
        return precision
    if x.device.type == "cuda" and x.dtype in (torch.float16, torch.bfloat16):
        return torch.bfloat16
    return accumulation_dtype(x)


def check_precision(precision: torch.dtype | None) -> None:
    """Refuse a `precision` that is not a floating-point type, when it is set."""
    if precision is not None and precision not in _FLOATS:
        accepted = ", ".join(map(str, _FLOATS))
        raise ValueError(f"precision must be None or one of {accepted}, got {precision!r}")
