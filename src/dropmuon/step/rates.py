"""Learning rates of groups, and those of AdamW beside those of norms.

The radius of a norm and the learning rate of AdamW are numbers of different sizes, often a hundred
times apart. Schedulers that multiply each group's rate keep them apart; those that set one maximum
or one end for all groups do not. So the rate of AdamW may be a ratio of `lr`: then all groups have
the same `lr`, whatever sets it, and AdamW takes its share of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dropmuon.checks import nonnegative_number
from dropmuon.model.routing import RATIO
from dropmuon.norms import AdamW

__all__ = [
    "ADAMW_LR",
    "OVERWRITTEN",
    "adamw_apart",
    "check_adamw",
    "overwritten",
    "rate_of",
]

ADAMW_LR = 3e-4
"""The default learning rate of AdamW."""

OVERWRITTEN = (
    "the learning rate of AdamW was raised to that of the norms, as by a scheduler that sets one "
    "rate for all groups; give adamw_ratio=adamw_lr / lr to DropMuon, or a list of rates to the "
    "scheduler: [group['lr'] for group in optimizer.param_groups]"
)
"""What a user is told when that has happened."""

Groups = Sequence[Mapping[str, Any]]


def check_adamw(lr: float, ratio: float | None) -> None:
    """Raise ValueError for a rate of AdamW that is none, or is given twice."""
    nonnegative_number("adamw_lr", lr)
    if ratio is None:
        return
    nonnegative_number("adamw_ratio", ratio)
    if lr != ADAMW_LR:
        raise ValueError(
            f"adamw_lr={lr} and adamw_ratio={ratio} are both learning rates of AdamW; leave out one"
        )


def rate_of(group: Mapping[str, Any]) -> float:
    """Return the learning rate that a group moves with, or raise ValueError if it is none."""
    rate = float(group["lr"]) * float(group.get(RATIO, 1.0))
    if not math.isfinite(rate):
        raise ValueError(
            f"lr of group {group.get('name', group.get('layer', ''))!r} is {rate}, and nothing "
            "moved; look at the scheduler, or at whatever else sets it"
        )
    return rate


def adamw_apart(groups: Groups) -> float | None:
    """Return the rate of AdamW, if it is a number of its own and not that of the norms."""
    found = _rates(groups)
    return found[1] if found is not None and found[0] != found[1] else None


def overwritten(groups: Groups, start: float) -> bool:
    """Return whether the rate of AdamW, apart at `start`, was raised to that of the norms."""
    found = _rates(groups)
    return found is not None and found[0] == found[1] and found[1] > start


def _rates(groups: Groups) -> tuple[float, float] | None:
    """Return the rate of the first group with a norm and of the first that AdamW moves."""
    with_norm = (g for g in groups if not isinstance(g["norm"], AdamW))
    by_adamw = (g for g in groups if isinstance(g["norm"], AdamW) and RATIO not in g)
    first, second = next(with_norm, None), next(by_adamw, None)
    return None if first is None or second is None else (rate_of(first), rate_of(second))
