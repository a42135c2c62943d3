"""From a layer's norms to torch's parameter groups, with names and learning rates."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dropmuon.model.policies import Choice, Policy, PolicyName
from dropmuon.model.roster import Member
from dropmuon.norms import AdamW, Norm, Orthogonalize, by_name

__all__ = ["LOOKUPS", "RATIO", "Routing", "as_groups"]

RATIO = "lr_ratio"
"""The setting of a group that its learning rate is multiplied by, where it has one."""

LOOKUPS = "lookups"
"""The setting of a group that has the look-ups of its parameters, where there are any."""


@dataclass(frozen=True)
class Routing:
    """How parameters get their norms, and those on AdamW their learning rate.

    That of AdamW is a number of its own, `adamw_lr`, or a ratio of `lr`.
    """

    policy: PolicyName | Policy
    orthogonalize: Orthogonalize
    lr: float
    adamw_lr: float
    adamw_ratio: float | None = None

    def complete(self, group: dict[str, Any]) -> None:
        """Resolve the norm of a group; give AdamW its learning rate unless the group has one."""
        if group.get("norm") is None:
            return
        group["norm"] = by_name(group["norm"], self.orthogonalize)
        if isinstance(group["norm"], AdamW) and "lr" not in group:
            own = {"lr": self.adamw_lr} if self.adamw_ratio is None else {RATIO: self.adamw_ratio}
            group.update(own)

    def rates_at(self, norm: Norm | AdamW, lr: float) -> dict[str, float]:
        """Return the rate of a group where that of norms is `lr`: for AdamW, in proportion."""
        if not isinstance(norm, AdamW):
            return {"lr": lr}
        if self.adamw_ratio is not None:
            return {"lr": lr, RATIO: self.adamw_ratio}
        return {"lr": self.adamw_lr * (lr / self.lr if self.lr else 1.0)}


def as_groups(
    layers: Iterable[tuple[str, Sequence[Member]]], taken: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Return torch's parameter groups of layers: one per layer and norm, with names of their own.

    A name is that of the layer, and the kind of norm where a layer has several groups.
    """
    groups: list[dict[str, Any]] = []
    names = set(taken)
    for layer, members in layers:
        alike: dict[Choice, list[tuple[str, Tensor]]] = {}
        for member in members:
            choice = Choice(member.norm, member.reason)
            alike.setdefault(choice, []).append((member.name, member.parameter))
        lookups = {member.parameter: member.lookups for member in members}
        for choice, named in alike.items():
            kind = f"/{type(choice.norm).__name__.lower()}" if len(alike) > 1 else ""
            name = _unused(f"{layer}{kind}", names)
            names.add(name)
            groups.append({"params": named, "layer": layer, "name": name, **vars(choice)})
            found = [each for _, own in named for each in lookups.get(own, ())]
            groups[-1].update({LOOKUPS: tuple(found)} if found else {})
    return groups


def _unused(name: str, taken: Container[str]) -> str:
    """Return a name, with a number where it is taken."""
    numbers = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(each for each in numbers if each not in taken)
