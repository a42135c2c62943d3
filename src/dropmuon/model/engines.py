"""What distributed engines do to parameters: followed where it can be, refused where it cannot.

`fully_shard` and `parallelize_module` replace the parameters of a model; an optimizer that was made
before has the old ones. Engines that flatten parameters, or divide them among optimizers, leave no
layers to draw and no matrices to orthogonalise.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dropmuon.model.roster import Member
from dropmuon.shards import is_sharded

__all__ = ["listed", "refuse_flat", "refuse_zero", "replacements", "same"]

_REMEDY = "shard the model with torch.distributed.fsdp.fully_shard, and then make DropMuon(model)"

Groups = Sequence[Mapping[str, Any]]


def refuse_flat(model: nn.Module | None, members: Iterable[Member]) -> None:
    """Raise ValueError for parameters that FSDP1 or DeepSpeed's ZeRO has flattened."""
    made = sys.modules.get("torch.distributed.fsdp")
    flat: Any = None if made is None else made.FullyShardedDataParallel
    modules = () if flat is None or model is None else model.modules()
    if any(isinstance(module, flat) for module in modules):
        raise ValueError(
            "params is in FullyShardedDataParallel (FSDP1), whose shards have no rows and columns; "
            f"{_REMEDY}"
        )
    for member in members:
        engine = "DeepSpeed's ZeRO" if hasattr(member.parameter, "ds_id") else None
        engine = "FSDP1" if hasattr(member.parameter, "_is_flat_param") else engine
        if engine is not None:
            raise ValueError(f"parameter {member.name!r} was flattened by {engine}; {_REMEDY}")


def refuse_zero() -> None:
    """Raise TypeError inside of `ZeroRedundancyOptimizer`, which makes an optimizer per rank.

    Each would have layers of its own to draw from. Nothing but its caller tells that.
    """
    made = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = None if made is None else sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return
        if isinstance(frame.f_locals.get("self"), made.ZeroRedundancyOptimizer):  # type: ignore[union-attr]
            raise TypeError(
                "optimizer_class=DropMuon divides the layers of ZeroRedundancyOptimizer among "
                f"ranks, which then draw different ones; {_REMEDY}"
            )
        frame = frame.f_back


def listed(groups: Groups) -> list[Tensor]:
    """Return the parameters of all groups, in order."""
    return [parameter for group in groups for parameter in group["params"]]


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Return whether two lists hold the same tensors, not only equal ones."""
    return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


def replacements(
    known: Sequence[Tensor], groups: Groups, members: Mapping[Tensor, Member]
) -> dict[Tensor, Tensor]:
    """Return new parameters by those they replace: in the groups, or in the modules of a model.

    Raise RuntimeError if they are of another number or shape than those that are known.
    """
    present = listed(groups)
    if len(present) != len(known):
        raise RuntimeError(
            f"param_groups has {len(present)} parameters, but DropMuon was made with {len(known)}; "
            f"it cannot follow flat or divided ones, as of DeepSpeed's ZeRO: {_REMEDY}"
        )
    found: dict[Tensor, Tensor] = {}
    for old, given in zip(known, present, strict=True):
        member = members[old]
        new = _current(member) if given is old else given
        if new.shape != member.shape:
            raise RuntimeError(
                f"parameter {member.name!r} had shape {tuple(member.shape)} when DropMuon was "
                f"made, and now has {tuple(new.shape)}; it cannot follow flat or divided "
                f"parameters, as of FSDP1 and DeepSpeed's ZeRO: {_REMEDY}"
            )
        if new is not old:
            found[old] = new
    return found


def _current(member: Member) -> Tensor:
    """Return the parameter that is now in a member's place in the model, where that is known.

    FSDP2 shows gathered parameters in place of its shards now and then.
    """
    if member.owner is None or is_sharded(member.parameter):
        return member.parameter
    module, name = member.owner
    if isinstance(module, torch.jit.ScriptModule):  # shows its parameters by others each time
        return member.parameter
    current = module._parameters.get(name)
    return member.parameter if current is None else current
