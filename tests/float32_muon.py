"""`torch.optim.Muon`'s iteration without its cast to bfloat16, to compare with in one precision."""

from __future__ import annotations

import torch
from torch import Tensor


def zeropower_without_cast(
    grad: Tensor, ns_coefficients: tuple[float, float, float], ns_steps: int, eps: float
) -> Tensor:
    """torch's iteration, operation by operation, in the type of the gradient."""
    a, b, c = ns_coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x.div_(x.norm().clamp(min=eps))
    for _ in range(ns_steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, update, x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x
