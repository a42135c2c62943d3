"""What an orthogonaliser is, and the exact one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dropmuon.norms.describing import Described
from dropmuon.norms.lengths import unit
from dropmuon.norms.precision import matmul_dtype

__all__ = ["SVD", "Orthogonalizer"]


class Orthogonalizer(Described, ABC):
    """Replaces the singular values of matrices by ones, or by about one.

    X = U S V^T of shape (..., m, n) becomes U V^T in the shape and type of X, X is left as it is.
    Vectors (m or n = 1) are exactly normalised, zero matrices stay zero. A subclass implements
    `_orthogonalize` for wide matrices (m <= n) of Frobenius norm one that it may overwrite.
    """

    @torch.no_grad()
    def __call__(self, x: Tensor, precision: torch.dtype | None = None) -> Tensor:
        """Orthogonalise `x`, with products in `precision` or in a type chosen by the device."""
        if x.numel() == 0:
            return x.clone()
        wide = unit(x, dim=(-2, -1))  # in at least float32, before any cast
        rows, columns = x.shape[-2:]
        if min(rows, columns) == 1:
            return wide.to(x.dtype)
        if rows > columns:
            wide = wide.mT
        polar = self._orthogonalize(wide.to(self._dtype(x, precision)))
        return (polar.mT if rows > columns else polar).to(x.dtype)

    @abstractmethod
    def _orthogonalize(self, x: Tensor) -> Tensor: ...

    def _dtype(self, x: Tensor, precision: torch.dtype | None) -> torch.dtype:
        return matmul_dtype(x, precision)


@dataclass(frozen=True, repr=False)
class SVD(Orthogonalizer):
    """The polar factor from a singular value decomposition, in at least float32.

    Directions whose singular value is rounding noise (at most max(m, n) * eps * the largest) are
    dropped, so that <X, U V^T> is the nuclear norm of X whatever its rank.
    """

    def _orthogonalize(self, x: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        noise = max(x.shape[-2:]) * torch.finfo(x.dtype).eps * s[..., :1]
        polar: Tensor = (u * (s > noise).to(u.dtype).unsqueeze(-2)) @ vh
        return polar

    def _dtype(self, x: Tensor, precision: torch.dtype | None) -> torch.dtype:
        return torch.promote_types(matmul_dtype(x, precision), torch.float32)
