"""What ranks decide together, where each has gradients of its own.

Ranks that average their gradients see the same ones, and decide alike without a word. A gradient
that is not averaged, as that of experts which live on one rank each, may be missing or infinite on
that rank alone; whether its layer moves, and which layers can have gradients at all, is then agreed
on by one small all-reduce. All ranks take part in it in the same steps, whatever they have found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, distributed

from dropmuon.checks import kind_of
from dropmuon.shards import Group

__all__ = ["Agreement"]


class Agreement:
    """The decisions of a process group; without one, a rank decides alone, at no cost."""

    def __init__(self, group: Group = None) -> None:
        kind = distributed.ProcessGroup if distributed.is_available() else None
        if group is not None and (kind is None or not isinstance(group, kind)):
            raise ValueError(
                "process_group must be a group of torch.distributed that this rank belongs to, as "
                f"torch.distributed.group.WORLD, got {kind_of(group)}"
            )
        self.group = group

    def any_found(self, layers: set[int], count: int, device: torch.device) -> set[int]:
        """Return which of `count` layers at least one rank has found."""
        if self.group is None:
            return layers
        flags = torch.zeros(count, dtype=torch.int32)
        flags[sorted(layers)] = 1
        flags = flags.to(device)
        distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=self.group)
        return {layer for layer, flag in enumerate(flags.tolist()) if flag}

    def all_true(self, flag: bool, device: torch.device) -> bool:
        """Return whether a flag is true on all ranks."""
        if self.group is None:
            return flag
        return bool(self.all_finite({0: torch.tensor(flag)}, [0], device)[0])

    def all_finite(
        self, flags: Mapping[int, Tensor], layers: Iterable[int], device: torch.device
    ) -> dict[int, Tensor]:
        """Return flags of layers that are true on all ranks; one that has no flag agrees."""
        if self.group is None:
            return dict(flags)
        order, fine = list(layers), torch.ones((), dtype=torch.bool, device=device)
        every = torch.stack([flags.get(layer, fine).to(device) for layer in order])
        every = every.to(torch.int32)
        distributed.all_reduce(every, distributed.ReduceOp.MIN, group=self.group)
        return dict(zip(order, every.bool().unbind(), strict=True))
