"""Matrices with known singular values, and literal twins of what is tested."""

from __future__ import annotations

import torch
from torch import Tensor


def with_singular_values(values: Tensor, columns: int) -> Tensor:
    rows = len(values)
    u, _ = torch.linalg.qr(torch.randn(rows, rows, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, rows, dtype=torch.float64))
    return (u * values.double()) @ v.mT


def well_conditioned(*shape: int) -> Tensor:
    *batch, m, n = shape
    count = int(torch.Size(batch).numel())
    values = torch.linspace(0.3, 1.0, min(m, n))
    made = [with_singular_values(values, max(m, n)) for _ in range(count)]
    return torch.stack([x if m <= n else x.mT for x in made]).reshape(shape)


def polar_factor(x: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    return u @ vh


def nuclear(g: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(g).sum())


def literal_newton_schulz(x: Tensor, polynomials: list[tuple[float, ...]]) -> Tensor:
    """The textbook iteration on one matrix, in float64 and with every power written out."""
    y = x.double() / x.double().norm()
    for a, b, *rest in polynomials:
        gram = y @ y.mT
        y = a * y + b * gram @ y + (rest[0] if rest else 0.0) * gram @ gram @ y
    return y
