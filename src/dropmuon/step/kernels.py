"""The arithmetic of a step, on lists of tensors.

Functions work in place, take lists of one device and one dtype, and never wait for the device.
Nothing here depends on layers, samplers or models.

`finite`, where given, holds one boolean 0-dim tensor per parameter: where it is false, the
parameter and its state keep every bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["adamw", "all_finite", "move", "start_momentum", "update_momentum"]

Finite = Sequence[Tensor] | None
Tensors = Sequence[Tensor]


def all_finite(tensors: Tensors) -> list[Tensor]:
    """Return one boolean 0-dim tensor per tensor, on its device: are all entries finite?"""
    flags: dict[int, Tensor] = {}
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for n, x in enumerate(tensors):
        if x.numel():
            alike.setdefault((x.device, x.dtype), []).append(n)
        else:
            flags[n] = torch.ones((), dtype=torch.bool, device=x.device)
    for numbers in alike.values():
        extremes = [torch.stack(torch.aminmax(tensors[n])) for n in numbers]
        finite = torch.stack(extremes).isfinite().all(dim=1)
        flags.update(zip(numbers, finite.unbind(), strict=True))
    return [flags[n] for n in range(len(tensors))]


def start_momentum(momenta: Tensors, gradients: Tensors) -> None:
    """Set M = G: every layer starts at its own gradient, as the theorems assume."""
    torch._foreach_copy_(list(momenta), list(gradients))


def update_momentum(
    momenta: Tensors, gradients: Tensors, *, momentum: float, nesterov: bool, finite: Finite = None
) -> list[Tensor]:
    """Set M = momentum*M + (1-momentum)*G (Algorithm 1, beta = 1-momentum).

    Return what to follow: M itself or, with Nesterov's look-ahead, (1-momentum)*G + momentum*M.
    """
    kept, fresh = list(momenta), list(gradients)
    if finite is not None:
        fresh = [torch.where(ok, g, m) for ok, g, m in zip(finite, fresh, kept, strict=True)]
    torch._foreach_lerp_(kept, fresh, 1 - momentum)
    return list(torch._foreach_lerp(fresh, kept, momentum)) if nesterov else kept


def move(
    parameters: Tensors,
    units: Tensors,
    *,
    lengths: float | Sequence[float | Tensor],
    decay: float = 0.0,
    finite: Finite = None,
) -> None:
    """Set X = (1 - decay)*X - length*D, where D is the unit direction of the parameter's norm."""
    targets, steps = list(parameters), list(units)
    if finite is None:
        if decay:
            torch._foreach_mul_(targets, 1 - decay)
        if isinstance(lengths, float):
            torch._foreach_add_(targets, steps, alpha=-lengths)
            return
        for x, d, length in zip(targets, steps, lengths, strict=True):
            x.sub_(d * length)
        return
    moved = [x.clone() for x in targets]
    move(moved, steps, lengths=lengths, decay=decay)
    for x, new, ok in zip(targets, moved, finite, strict=True):
        x.copy_(torch.where(ok, new, x))


def adamw(
    parameters: Tensors,
    gradients: Tensors,
    averages: Tensors,
    squares: Tensors,
    steps: Tensors,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    finite: Finite = None,
) -> None:
    """Apply AdamW (Loshchilov and Hutter, 2019), for parameters kept out of the LMO steps."""
    beta1, beta2 = betas
    flags = finite if finite is not None else [None] * len(list(parameters))
    for x, g, m, v, k, ok in zip(
        parameters, gradients, averages, squares, steps, flags, strict=True
    ):
        if ok is None:
            k.add_(1)
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            target = x
        else:
            k.add_(ok)
            m.copy_(torch.where(ok, torch.lerp(m, g, 1 - beta1), m))
            v.copy_(torch.where(ok, torch.addcmul(v * beta2, g, g, value=1 - beta2), v))
            target = x.clone()
        target.mul_(1 - decay)
        scale = (v / (1 - beta2**k)).sqrt_().add_(eps)
        target.sub_((lr / (1 - beta1**k)) * (m / scale))
        if ok is not None:
            x.copy_(torch.where(ok, target, x))
