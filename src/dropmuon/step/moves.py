"""One update of the active layers: finite or skipped, bucketed, moved.

A `Move` is a parameter with its gradient, state, norm and settings. Moves that share norm, dtype,
device and settings form a bucket, and a bucket moves as a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dropmuon.norms import AdamW, Norm
from dropmuon.norms.numerics import accumulation_dtype, inner
from dropmuon.samplers import ActiveSet
from dropmuon.step.kernels import adamw, all_finite, descent_directions, move, start_momentum
from dropmuon.step.rules import StepRule

__all__ = ["Move", "new_state", "screen", "take_step"]


@dataclass(slots=True)
class Move:
    """One parameter that is to move, and all that decides how."""

    parameter: Tensor
    gradient: Tensor
    state: dict[str, Any]
    layer: int
    norm: Norm | AdamW
    group: Mapping[str, Any]
    finite: Tensor | None = None
    """False on the device where the layer's gradient is not finite; None where all is well."""


def new_state(parameter: Tensor, norm: Norm | AdamW) -> dict[str, Any]:
    """State of a parameter that has not moved yet."""
    zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    if isinstance(norm, AdamW):
        count = torch.zeros((), dtype=accumulation_dtype(parameter), device=parameter.device)
        return {"updates": 0, "step": count, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
    return {"updates": 0, "momentum_buffer": zeros}


def screen(moves: Sequence[Move], *, on_host: bool) -> tuple[list[Move], dict[int, Tensor]]:
    """Keep layers with NaN or infinite gradients from moving; answer what is left, and who was hit.

    On the host, bad layers are dropped. Otherwise their moves carry a flag that undoes them on the
    device, and nothing waits. The second answer counts, per layer, as 0-dim tensors: 1 where hit.
    """
    flags: dict[int, Tensor] = {}
    for each, finite in zip(moves, all_finite([m.gradient for m in moves]), strict=True):
        known = flags.get(each.layer)
        flags[each.layer] = finite if known is None else known & finite.to(known.device)
    if not on_host:
        for each in moves:
            each.finite = flags[each.layer].to(each.parameter.device, non_blocking=True)
        return list(moves), {layer: (~flag).long() for layer, flag in flags.items()}
    fine = torch.stack([flag.to("cpu") for flag in flags.values()]).tolist()
    bad = {layer for layer, is_fine in zip(flags, fine, strict=True) if not is_fine}
    hit = {layer: torch.ones((), dtype=torch.long) for layer in bad}
    return [each for each in moves if each.layer not in bad], hit


def take_step(moves: Sequence[Move], rule: StepRule, active: ActiveSet) -> None:
    """Move every parameter: momentum, unit direction of its norm, length by the rule."""
    with _no_autocast({each.parameter.device.type for each in moves}):
        _take_step(moves, rule, active)


@contextmanager
def _no_autocast(devices: Iterable[str]) -> Iterator[None]:
    """The precision of a step is chosen by its norms, wherever it is taken."""
    with ExitStack() as stack:
        for device in devices:
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _take_step(moves: Iterable[Move], rule: StepRule, active: ActiveSet) -> None:
    descents = []
    for bucket in _buckets(moves):
        if isinstance(bucket[0].norm, AdamW):
            _adamw_bucket(bucket, bucket[0].norm)
            continue
        descent = _descend(bucket, bucket[0].norm, rule)
        if rule.uses_dual:
            descents.append(descent)
        else:
            descent.move(rule, active, {})
    layer_duals = _layer_duals(descents, rule)
    for descent in descents:
        descent.move(rule, active, layer_duals)


@dataclass
class _Descent:
    """A bucket with its unit directions, and their dual norms where the rule asks for them."""

    bucket: list[Move]
    directions: list[Tensor]
    duals: list[Tensor] | None

    def move(self, rule: StepRule, active: ActiveSet, layer_duals: Mapping[int, Tensor]) -> None:
        group = self.bucket[0].group
        lr = float(group["lr"])
        lengths: list[float | Tensor] = []
        for i, each in enumerate(self.bucket):
            dual = self.duals[i] if self.duals is not None else None
            whole = layer_duals.get(each.layer)
            whole = whole.to(each.parameter.device) if whole is not None else None
            lengths.append(lr * rule.length(each.layer, active, dual, whole))
        same = isinstance(lengths[0], float) and all(x == lengths[0] for x in lengths)
        move(
            [each.parameter for each in self.bucket],
            self.directions,
            lengths=float(lengths[0]) if same else lengths,
            decay=lr * group["weight_decay"],
            finite=_flags(self.bucket),
        )


def _buckets(moves: Iterable[Move]) -> list[list[Move]]:
    found: dict[tuple[Any, ...], list[Move]] = defaultdict(list)
    for n, each in enumerate(moves):
        group, parameter = each.group, each.parameter
        key = (
            id(each.norm),
            parameter.dtype,
            parameter.device,
            float(group["lr"]),
            group["momentum"],
            group["nesterov"],
            group["weight_decay"],
            group["maximize"],
            group["momentum_start"],
            each.state["updates"] == 0,
            each.finite is None,
            None if group["foreach"] else n,
        )
        found[key].append(each)
        each.state["updates"] += 1
    return list(found.values())


def _descend(bucket: list[Move], norm: Norm, rule: StepRule) -> _Descent:
    group = bucket[0].group
    momenta = [each.state["momentum_buffer"] for each in bucket]
    gradients = _gradients(bucket)
    starts = bucket[0].state["updates"] == 1 and group["momentum_start"] == "gradient"
    if starts:
        start_momentum(momenta, gradients)
        along = momenta
    else:
        along = descent_directions(
            momenta,
            gradients,
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            finite=_flags(bucket),
        )
    directions = norm.unit_directions(along)
    duals = None
    if rule.uses_dual:
        duals = [inner(u, d) for u, d in zip(along, directions, strict=True)]
    return _Descent(bucket, directions, duals)


def _adamw_bucket(bucket: list[Move], settings: AdamW) -> None:
    group = bucket[0].group
    lr = float(group["lr"])
    adamw(
        [each.parameter for each in bucket],
        _gradients(bucket),
        [each.state["exp_avg"] for each in bucket],
        [each.state["exp_avg_sq"] for each in bucket],
        [each.state["step"] for each in bucket],
        lr=lr,
        betas=settings.betas,
        eps=settings.eps,
        decay=lr * group["weight_decay"],
        finite=_flags(bucket),
    )


def _gradients(bucket: list[Move]) -> list[Tensor]:
    gradients = [each.gradient for each in bucket]
    return list(torch._foreach_neg(gradients)) if bucket[0].group["maximize"] else gradients


def _flags(bucket: list[Move]) -> list[Tensor] | None:
    flags = [each.finite for each in bucket if each.finite is not None]
    return flags or None


def _layer_duals(descents: Iterable[_Descent], rule: StepRule) -> dict[int, Tensor]:
    duals: dict[int, list[Tensor]] = defaultdict(list)
    for descent in descents:
        for each, dual in zip(descent.bucket, descent.duals or (), strict=True):
            duals[each.layer].append(dual)
    return {
        layer: rule.layer_norm.dual(torch.stack([dual.to(found[0].device) for dual in found]))
        for layer, found in duals.items()
    }
