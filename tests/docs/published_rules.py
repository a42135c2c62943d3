"""The updates that other optimizers publish, written out for one parameter.

A rule takes a parameter, its gradient and its own state, and changes the first and the last in
place. Sources: the formulas in the papers and readmes that each docstring names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
Rule = Callable[[Tensor, Tensor, State], None]
Polynomial = tuple[float, float, float]

JORDAN: tuple[Polynomial, ...] = ((3.4445, -4.7750, 2.0315),) * 5
DION: tuple[Polynomial, ...] = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def newton_schulz(m: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """p(X) = a X + b (X X^T) X + c (X X^T)^2 X for each polynomial, from X = M / ||M||_F.

    The 1e-7 that implementations add to the norm, against division by zero, is left out.
    """
    x = m / m.norm()
    for a, b, c in polynomials:
        x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
    return x


def adam(
    lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, decay: float = 0.0
) -> Rule:
    """AdamW (Loshchilov and Hutter, 2019, Algorithm 2), decay times lr as in PyTorch."""

    def rule(x: Tensor, g: Tensor, state: State) -> None:
        k = state["k"] = state.get("k", 0) + 1
        first = state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * g
        second = state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * g**2
        unbiased = first / (1 - betas[0] ** k), second / (1 - betas[1] ** k)
        x.mul_(1 - lr * decay).sub_(lr * unbiased[0] / (unbiased[1].sqrt() + eps))

    return rule


def jordan(lr: float, momentum: float, decay: float) -> Rule:
    """KellerJordan/Muon: an average from zero, Nesterov, and a factor of the last two axes."""

    def rule(x: Tensor, g: Tensor, state: State) -> None:
        m = state["m"] = momentum * state.get("m", 0.0) + (1 - momentum) * g
        ahead = momentum * m + (1 - momentum) * g
        step = newton_schulz(ahead.flatten(1), JORDAN).reshape(x.shape)
        factor = math.sqrt(max(1.0, x.shape[-2] / x.shape[-1]))
        x.mul_(1 - lr * decay).sub_(lr * factor * step)

    return rule


def dion_muon(lr: float, mu: float, decay: float) -> Rule:
    """dion.Muon with adjust_lr "spectral_norm": a sum from zero, sqrt(fan out / fan in)."""

    def rule(x: Tensor, g: Tensor, state: State) -> None:
        m = state["m"] = mu * state.get("m", 0.0) + g
        factor = math.sqrt(x.shape[0] / x.shape[1])
        x.mul_(1 - lr * decay).sub_(lr * factor * newton_schulz(m, DION))

    return rule


def dion(lr: float, mu: float, start: Tensor) -> Rule:
    """Dion (Ahn et al., 2025, arXiv 2504.05295), the centralised algorithm: one power iteration.

    `start` is the first right factor Q, of shape (columns, rank).
    """

    def rule(x: Tensor, g: Tensor, state: State) -> None:
        b = state.get("m", 0.0) + g
        p, _ = torch.linalg.qr(b @ state.get("q", start))
        r = b.T @ p
        state["m"] = b - (1 - mu) * p @ r.T
        q = state["q"] = r / r.norm(dim=0)
        x.sub_(lr * math.sqrt(x.shape[0] / x.shape[1]) * p @ q.T)

    return rule


def scion(lr: float, alpha: float, radius: float, lmo: Callable[[Tensor], Tensor]) -> Rule:
    """Scion (Pethick et al., 2025, arXiv 2502.07529), constrained: X = (1-lr) X - lr radius lmo."""

    def rule(x: Tensor, g: Tensor, state: State) -> None:
        m = state["m"] = (1 - alpha) * state.get("m", 0.0) + alpha * g
        x.mul_(1 - lr).sub_(lr * radius * lmo(m))

    return rule
