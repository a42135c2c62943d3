"""One update of the active layers, as in Algorithm 1: momentum, LMO, length, move.

Parameters that share norm, dtype, device and settings form a bucket, and a bucket moves as a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dropmuon.model.roster import Member
from dropmuon.norms import AdamW, Norm
from dropmuon.norms.numerics import accumulation_dtype, inner, no_autocast
from dropmuon.samplers import ActiveSet
from dropmuon.shards import any_sharded, is_sharded, local, local_gradient
from dropmuon.step import kernels, sharded
from dropmuon.step.rates import rate_of
from dropmuon.step.rules import StepRule

__all__ = ["is_rehearsal", "new_state", "screen", "screens_on_host", "take_step"]

Groups = Sequence[Mapping[str, Any]]
State = MutableMapping[Tensor, Any]


def take_step(
    members: Sequence[Member],
    groups: Groups,
    state: State,
    rule: StepRule,
    active: ActiveSet,
    finite: Mapping[int, Tensor] | None = None,
    stretch: Callable[[Member], int] = lambda member: 1,
) -> None:
    """Move parameters along their gradients, each in its own norm and by the rule's length.

    A group may have a `step_rule` of its own, which then takes the place of `rule`.
    `finite`, where given, has a flag per layer on the device: where it is false, the layer's
    parameters and momenta keep every bit. `stretch` says how many times as far a parameter moves;
    where it is 0, only the momentum follows the gradient.

    Of stacked experts (`Member.experts`), each is treated as a layer of its own would be: one whose
    gradient is exactly zero saw no token, and keeps parameter and momentum, bit for bit; its
    momentum starts at the first gradient that is not zero. This too is decided on the device.
    """
    waiting: list[tuple[_Bucket, list[Tensor], list[Tensor]]] = []
    with no_autocast({member.parameter.device.type for member in members}):
        for bucket in _buckets(members, groups, state, rule, finite, stretch):
            if isinstance(bucket.norm, AdamW):
                _adamw(bucket, bucket.norm)
                continue
            followed = _momentum(bucket)  # M_i, started or updated
            if not bucket.stretch:
                continue  # another one's turn, or i not in S^k: X_i stays
            units = bucket.unit_directions(followed)  # -lmo(M_i) at radius 1
            if bucket.rule.uses_dual:  # ||M_i||_*, from which the lengths of a whole layer follow
                waiting.append((bucket, units, bucket.duals(followed, units)))
            else:
                _move(bucket, units, _lengths(bucket, active))
        layer_duals = _layer_duals(waiting)
        for bucket, units, duals in waiting:
            _move(bucket, units, _lengths(bucket, active, duals, layer_duals))
    for member in members:
        state[member.parameter]["updates"] += 1


def new_state(member: Member) -> dict[str, Any]:
    """Return the state of a parameter that has not moved yet.

    AdamW's moments of 16-bit parameters have 32 bits: squares of gradients are too small for less.
    """
    parameter = member.parameter
    if isinstance(member.norm, AdamW):
        dtype = accumulation_dtype(parameter)
        zeros = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)
        count = torch.zeros((), dtype=dtype, device=parameter.device)
        return {"updates": 0, "step": count, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
    zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {"updates": 0, "momentum_buffer": zeros}


def is_rehearsal(groups: Groups) -> bool:
    """Return whether all learning rates and all gradients are zero, on all ranks.

    This is how `torch.distributed.checkpoint` makes an optimizer show its states.
    """
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    if not parameters or any(rate_of(group) for group in groups):
        return False
    gradients = [local(parameter.grad) for parameter in parameters]
    zero = torch.tensor(all(not g.count_nonzero() for g in gradients))
    if any_sharded(parameters):
        zero = sharded.agreed({0: zero}, parameters)[0]
    return bool(zero)


def screens_on_host(members: Sequence[Member], state: State) -> bool:
    """Return whether to wait for the device: a first update must start at a finite gradient.

    A CPU has nothing to wait for.
    """
    is_first = any(state[member.parameter]["updates"] == 0 for member in members)
    return is_first or all(member.parameter.device.type == "cpu" for member in members)


def screen(
    members: Sequence[Member],
    *,
    on_host: bool,
    agree: Callable[[dict[int, Tensor]], dict[int, Tensor]] = dict,
) -> tuple[list[Member], dict[int, Tensor] | None, dict[int, Tensor]]:
    """Find the layers with a NaN or an infinity in a gradient: a layer moves as a whole or not.

    Return the members to move, flags for `take_step`, and a count of 1 per layer that is skipped.
    On the host, bad layers are left out and no flags are needed. Otherwise nothing waits for the
    device: all members move, the flags undo what must not, and counts are 0 or 1 on the device.
    `agree` makes flags of this rank those of all ranks that move together.
    """
    finite: dict[int, Tensor] = {}
    squared = [isinstance(member.norm, AdamW) for member in members]
    flags = kernels.all_finite([_gradient(member) for member in members], squared)
    for member, flag in zip(members, flags, strict=True):
        known = finite.get(member.layer)
        finite[member.layer] = flag if known is None else known & flag.to(known.device)
    if any_sharded(member.parameter for member in members):
        finite = sharded.agreed(finite, [member.parameter for member in members])
    finite = agree(finite)
    if not on_host:
        return list(members), finite, {layer: (~flag).long() for layer, flag in finite.items()}
    fine = torch.stack([flag.to("cpu") for flag in finite.values()]).tolist()
    bad = {layer for layer, is_fine in zip(finite, fine, strict=True) if not is_fine}
    hit = {layer: torch.ones((), dtype=torch.long) for layer in bad}
    return [member for member in members if member.layer not in bad], None, hit


@dataclass
class _Bucket:
    """Parameters that move as a batch."""

    members: list[Member]
    states: list[dict[str, Any]]
    settings: Mapping[str, Any]
    rule: StepRule
    moving: list[Tensor] | None
    stretch: int

    @property
    def lr(self) -> float:
        """The learning rate of this step, over which weight decay and length are measured."""
        return rate_of(self.settings) * self.stretch

    @property
    def norm(self) -> Norm | AdamW:
        return self.members[0].norm

    @property
    def is_first(self) -> bool:
        """Whether this is the first update of its parameters."""
        return bool(self.states[0]["updates"] == 0)

    @property
    def has_experts(self) -> bool:
        """Whether its parameters are stacks of which each block moves, or not, on its own."""
        return self.members[0].experts > 1

    @property
    def parameters(self) -> list[Tensor]:
        return [member.parameter for member in self.members]

    @property
    def gradients(self) -> list[Tensor]:
        gradients = [_gradient(member) for member in self.members]
        return list(torch._foreach_neg(gradients)) if self.settings["maximize"] else gradients

    def state(self, name: str) -> list[Tensor]:
        return [state[name] for state in self.states]

    def unit_directions(self, followed: Sequence[Tensor]) -> list[Tensor]:
        return cast(Norm, self.norm).unit_directions(followed)

    def duals(self, followed: Sequence[Tensor], units: Sequence[Tensor]) -> list[Tensor]:
        return [inner(m, unit) for m, unit in zip(followed, units, strict=True)]


class _ShardedBucket(_Bucket):
    """Parameters of which each rank moves what it holds."""

    @property
    def parameters(self) -> list[Tensor]:
        return [local(member.parameter) for member in self.members]

    def state(self, name: str) -> list[Tensor]:
        return [local(state[name]) for state in self.states]

    def unit_directions(self, followed: Sequence[Tensor]) -> list[Tensor]:
        whole = [member.parameter for member in self.members]
        return sharded.unit_directions(cast(Norm, self.norm), followed, whole)

    def duals(self, followed: Sequence[Tensor], units: Sequence[Tensor]) -> list[Tensor]:
        own = super().duals(followed, units)
        return sharded.summed(own, [member.parameter for member in self.members])


def _buckets(
    members: Iterable[Member],
    groups: Groups,
    state: State,
    rule: StepRule,
    finite: Mapping[int, Tensor] | None,
    stretch: Callable[[Member], int],
) -> list[_Bucket]:
    alike: dict[tuple[Any, ...], list[Member]] = defaultdict(list)
    for number, member in enumerate(members):
        group, parameter = groups[member.group], member.parameter
        key = (
            id(member.norm),
            parameter.dtype,
            parameter.device,
            is_sharded(parameter),
            member.experts > 1,
            rate_of(group),
            group["momentum"],
            group["nesterov"],
            group["weight_decay"],
            group["maximize"],
            group["momentum_start"],
            id(group.get("step_rule")),
            state[parameter]["updates"] == 0,
            stretch(member),
            None if group["foreach"] else number,
        )
        alike[key].append(member)
    return [
        _bucket(found, groups, state, rule, finite, stretch(found[0])) for found in alike.values()
    ]


def _bucket(
    members: list[Member],
    groups: Groups,
    state: State,
    rule: StepRule,
    finite: Mapping[int, Tensor] | None,
    stretch: int,
) -> _Bucket:
    moving, settings = None, groups[members[0].group]
    if finite is not None:
        device = members[0].parameter.device
        moving = [finite[member.layer].to(device, non_blocking=True) for member in members]
    if members[0].experts > 1:
        used = kernels.in_use([_gradient(member) for member in members])
        moving = used if moving is None else [u & ok for u, ok in zip(used, moving, strict=True)]
    states = [state[member.parameter] for member in members]
    kind = _ShardedBucket if is_sharded(members[0].parameter) else _Bucket
    return kind(members, states, settings, settings.get("step_rule") or rule, moving, stretch)


def _momentum(bucket: _Bucket) -> list[Tensor]:
    """Start or update the momenta; return what the LMO follows."""
    momenta, settings = bucket.state("momentum_buffer"), bucket.settings
    if bucket.is_first and settings["momentum_start"] == "gradient":
        kernels.start_momentum(momenta, bucket.gradients)
        return momenta
    experts = bucket.moving if bucket.has_experts else None
    if experts is not None and settings["momentum_start"] == "gradient":
        kernels.start_blocks(momenta, bucket.gradients, experts)
    followed = kernels.update_momentum(
        momenta,
        bucket.gradients,
        momentum=settings["momentum"],
        nesterov=settings["nesterov"],
        moving=bucket.moving,
    )
    return followed if experts is None else kernels.only(followed, experts)


def _lengths(
    bucket: _Bucket,
    active: ActiveSet,
    duals: Sequence[Tensor] | None = None,
    layer_duals: Mapping[tuple[int, StepRule], Tensor] | None = None,
) -> list[float | Tensor]:
    """Return t_i of each parameter: the rule's length times the learning rate."""
    lengths: list[float | Tensor] = []
    for i, member in enumerate(bucket.members):
        dual = None if duals is None else duals[i]
        whole = None if layer_duals is None else layer_duals[member.layer, bucket.rule]
        whole = None if whole is None else whole.to(member.parameter.device)
        lengths.append(bucket.lr * bucket.rule.length(member.layer, active, dual, whole))
    return lengths


def _move(bucket: _Bucket, units: list[Tensor], lengths: list[float | Tensor]) -> None:
    """Set X_i = (1 - lr * weight_decay) X_i + lmo(M_i) at radius t_i."""
    same = isinstance(lengths[0], float) and all(length == lengths[0] for length in lengths)
    kernels.move(
        bucket.parameters,
        units,
        lengths=float(lengths[0]) if same else lengths,
        decay=bucket.lr * bucket.settings["weight_decay"],
        moving=bucket.moving,
    )


def _layer_duals(
    waiting: Iterable[tuple[_Bucket, list[Tensor], list[Tensor]]],
) -> dict[tuple[int, StepRule], Tensor]:
    """Return the dual norm of each layer, over its parameters that have a rule in common."""
    duals: dict[tuple[int, StepRule], list[Tensor]] = defaultdict(list)
    for bucket, _, found in waiting:
        for member, dual in zip(bucket.members, found, strict=True):
            duals[member.layer, bucket.rule].append(dual)
    return {
        key: key[1].layer_norm.dual(torch.stack([dual.to(found[0].device) for dual in found]))
        for key, found in duals.items()
    }


def _adamw(bucket: _Bucket, settings: AdamW) -> None:
    kernels.adamw(
        bucket.parameters,
        bucket.gradients,
        bucket.state("exp_avg"),
        bucket.state("exp_avg_sq"),
        bucket.state("step"),
        lr=bucket.lr,
        betas=settings.betas,
        eps=settings.eps,
        decay=bucket.lr * bucket.settings["weight_decay"],
        moving=bucket.moving,
    )


def _gradient(member: Member) -> Tensor:
    if is_sharded(member.parameter):
        return local_gradient(member.parameter)
    return cast(Tensor, member.parameter.grad)
