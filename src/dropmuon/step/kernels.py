"""The arithmetic of a step, on lists of tensors.

Functions work in place, take lists of one device and one dtype, and never wait for the device.
Nothing here depends on layers, samplers or models.

`moving`, where given, holds one boolean tensor per parameter, without dimensions or with one entry
per block: where it is false, the parameter and its state keep every bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dropmuon.norms.numerics import accumulation_dtype

__all__ = [
    "adamw",
    "all_finite",
    "in_use",
    "move",
    "only",
    "start_blocks",
    "start_momentum",
    "update_momentum",
]

Moving = Sequence[Tensor] | None
Tensors = Sequence[Tensor]


def all_finite(tensors: Tensors, squared: Sequence[bool] | None = None) -> list[Tensor]:
    """Return one boolean 0-dim tensor per tensor, on its device: are all entries finite?

    Where `squared`, so must their squares be, of which AdamW keeps a mean: one infinite square
    would stay in it for good.
    """
    flags: dict[int, Tensor] = {}
    alike: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    for n, x in enumerate(tensors):
        if x.numel():
            is_squared = squared is not None and squared[n]
            alike.setdefault((x.device, x.dtype, is_squared), []).append(n)
        else:
            flags[n] = torch.ones((), dtype=torch.bool, device=x.device)
    for (_, _, is_squared), numbers in alike.items():
        extremes = torch.stack([torch.stack(torch.aminmax(tensors[n])) for n in numbers])
        if is_squared:
            extremes = extremes.to(accumulation_dtype(extremes)).square()
        finite = extremes.isfinite().all(dim=1)
        flags.update(zip(numbers, finite.unbind(), strict=True))
    return [flags[n] for n in range(len(tensors))]


def in_use(gradients: Tensors) -> list[Tensor]:
    """Return booleans (blocks, 1, ...) per gradient: is it other than zero anywhere in a block?

    Blocks are along the first axis. An expert that saw no token has a gradient of exact zeros.
    """
    return [_any_entry(g != 0) for g in gradients]


def start_blocks(momenta: Tensors, gradients: Tensors, moving: Tensors) -> None:
    """Set M = G in the moving blocks whose momentum is zero: they start at their first gradient."""
    for m, g, ok in zip(momenta, gradients, moving, strict=True):
        torch.where(ok & ~_any_entry(m != 0), g, m, out=m)


def only(tensors: Tensors, moving: Tensors) -> list[Tensor]:
    """Return the tensors with zeros in the blocks that do not move."""
    return [torch.where(ok, x, 0) for x, ok in zip(tensors, moving, strict=True)]


def _any_entry(x: Tensor) -> Tensor:
    """Return whether any entry of each block along the first axis is true, to broadcast."""
    return x.flatten(1).any(dim=1).reshape(-1, *(1,) * (x.ndim - 1))


def start_momentum(momenta: Tensors, gradients: Tensors) -> None:
    """Set M = G: every layer starts at its own gradient, as the theorems assume."""
    torch._foreach_copy_(list(momenta), list(gradients))


def update_momentum(
    momenta: Tensors, gradients: Tensors, *, momentum: float, nesterov: bool, moving: Moving = None
) -> list[Tensor]:
    """Set M = momentum*M + (1-momentum)*G (Algorithm 1, beta = 1-momentum).

    Return what to follow: M itself or, with Nesterov's look-ahead, (1-momentum)*G + momentum*M.
    """
    kept, fresh = list(momenta), list(gradients)
    if moving is None:
        torch._foreach_lerp_(kept, fresh, 1 - momentum)
    else:
        fresh = [torch.where(ok, g, m) for ok, g, m in zip(moving, fresh, kept, strict=True)]
        new = torch._foreach_lerp(kept, fresh, 1 - momentum)
        _take(kept, new, moving)  # m + (m - m) would lose the sign of a zero
    return list(torch._foreach_lerp(fresh, kept, momentum)) if nesterov else kept


def move(
    parameters: Tensors,
    units: Tensors,
    *,
    lengths: float | Sequence[float | Tensor],
    decay: float = 0.0,
    moving: Moving = None,
) -> None:
    """Set X = (1 - decay)*X - length*D, where D is the unit direction of the parameter's norm."""
    targets, steps = list(parameters), list(units)
    if moving is not None:
        moved = _copies(targets)
        move(moved, steps, lengths=lengths, decay=decay)
        _take(targets, moved, moving)
        return
    if decay:
        torch._foreach_mul_(targets, 1 - decay)
    if isinstance(lengths, float):
        torch._foreach_add_(targets, steps, alpha=-lengths)
        return
    for x, d, length in zip(targets, steps, lengths, strict=True):
        x.sub_(d * length)


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
    moving: Moving = None,
) -> None:
    """Apply AdamW (Loshchilov and Hutter, 2019), for parameters kept out of the LMO steps.

    Moments may have a wider dtype than parameters; then all arithmetic has it.
    """
    if parameters and parameters[0].dtype != averages[0].dtype:
        wide = averages[0].dtype
        x32, g32 = ([t.to(wide) for t in each] for each in (parameters, gradients))
        adamw(
            x32,
            g32,
            averages,
            squares,
            steps,
            lr=lr,
            betas=betas,
            eps=eps,
            decay=decay,
            moving=moving,
        )
        torch._foreach_copy_(list(parameters), x32)
        return
    kept = [list(each) for each in (parameters, averages, squares, steps)]
    x, m, v, k = kept if moving is None else map(_copies, kept)
    gradients, (beta1, beta2) = list(gradients), betas
    torch._foreach_add_(k, 1)
    torch._foreach_lerp_(m, gradients, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, gradients, gradients, value=1 - beta2)
    counts = torch.stack(k)
    scale = torch._foreach_div(v, (1 - beta2**counts).unbind())
    torch._foreach_sqrt_(scale)
    torch._foreach_add_(scale, eps)
    torch._foreach_mul_(scale, (1 - beta1**counts).unbind())
    if lr:  # else every bit of X stays, and only the moments follow
        torch._foreach_mul_(x, 1 - decay)
        torch._foreach_addcdiv_(x, m, scale, value=-lr)
    if moving is not None:
        for old, new in zip(kept[:3], (x, m, v), strict=True):
            _take(old, new, moving)
        _take(kept[3], k, [ok.any() if ok.ndim else ok for ok in moving])


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Return a copy of each tensor, with one launch for all."""
    return list(torch._foreach_mul(tensors, 1))


def _take(kept: Tensors, new: Tensors, moving: Tensors) -> None:
    """Set the moving parts of `kept` to `new`, with one launch per tensor and no copy of it."""
    for x, changed, ok in zip(kept, new, moving, strict=True):
        torch.where(ok, changed, x, out=x)
