"""Who is who: the layers of an optimizer, and what is known of each parameter in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dropmuon import norms
from dropmuon.checks import check_parameter
from dropmuon.model.layers import owner_label
from dropmuon.model.policies import Choice, Policy, Site, choose, groups_of
from dropmuon.model.table import Row, table

__all__ = ["Member", "Roster", "named_groups"]


@dataclass(frozen=True, eq=False)
class Member:
    """One parameter: its name, its group, its norm and the reason for that norm."""

    parameter: Tensor
    name: str
    group: int
    norm: norms.Norm | norms.AdamW
    reason: str


@dataclass(frozen=True, eq=False)
class Roster:
    """Layers by name, in order, each with the members of its parameters."""

    names: tuple[str, ...]
    layers: tuple[tuple[Member, ...], ...]

    @classmethod
    def of(
        cls, groups: Sequence[Mapping[str, Any]], policy: str | Policy, orthogonalize: Any
    ) -> Roster:
        """Read parameter groups: layers come in the order of first mention, integers sorted.

        A parameter without a `layer` belongs to the module that its name says, or, without a
        name, to a layer of its own; without a `norm`, the policy chooses.
        """
        entries = list(_entries(groups))
        labels = list(dict.fromkeys(label for label, *_ in entries))
        if all(isinstance(label, int) for label in labels):
            labels.sort()
        index = {label: position for position, label in enumerate(labels)}
        same: dict[Any, Any] = {}
        layers: list[list[Member]] = [[] for _ in labels]
        for label, name, parameter, number in entries:
            check_parameter(name, parameter)
            site = Site(name, parameter, None, index[label], len(labels))
            choice = _choice(groups[number], site, policy, orthogonalize)
            norm = same.setdefault(choice.norm, choice.norm)
            layers[index[label]].append(Member(parameter, name, number, norm, choice.reason))
        return cls(tuple(map(str, labels)), tuple(map(tuple, layers)))

    def __len__(self) -> int:
        return len(self.names)

    def members(self) -> Iterator[Member]:
        """All members, in order."""
        for layer in self.layers:
            yield from layer

    def table(self, title: str) -> str:
        """The roster as text: one row per layer and norm."""
        rows = []
        for name, layer in zip(self.names, self.layers, strict=True):
            alike: dict[tuple[str, str], list[Member]] = {}
            for member in layer:
                alike.setdefault((str(member.norm), member.reason), []).append(member)
            rows += [_row(name, members) for members in alike.values()]
        return table(title, rows)


def named_groups(
    pairs: Iterable[tuple[str, Tensor]], policy: str | Policy, orthogonalize: Any
) -> list[dict[str, Any]]:
    """Groups for `(name, parameter)` pairs: one per layer and norm, layers by owning module."""
    members: dict[str, list[tuple[str, Tensor]]] = {}
    for name, parameter in pairs:
        members.setdefault(owner_label(name), []).append((name, parameter))
    groups = []
    for index, (label, named) in enumerate(members.items()):
        sites = (Site(name, parameter, None, index, len(members)) for name, parameter in named)
        groups += groups_of(label, sites, policy, orthogonalize)
    return groups


def _entries(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, str, Tensor, int]]:
    count = 0
    for number, group in enumerate(groups):
        given = group.get("param_names")
        for position, parameter in enumerate(group["params"]):
            name = given[position] if given else f"param{count}"
            label = group.get("layer")
            if label is None:
                label = owner_label(name)
            yield label, name, parameter, number
            count += 1


def _choice(
    group: Mapping[str, Any], site: Site, policy: str | Policy, orthogonalize: Any
) -> Choice:
    if group.get("norm") is not None:
        norm = norms.by_name(group["norm"], orthogonalize)
        return Choice(norm, group.get("reason") or "given with the group")
    choice = choose(policy, site, orthogonalize)
    if isinstance(choice.norm, norms.AdamW):
        raise ValueError(
            f"policy gives {site.name!r} to AdamW, which needs a learning rate of its own; pass "
            "the model or (name, parameter) pairs, or a group with norm='adamw' and its lr"
        )
    return choice


def _row(layer: str, members: Sequence[Member]) -> Row:
    return Row(
        layer,
        tuple(member.name for member in members),
        tuple(tuple(member.parameter.shape) for member in members),
        sum(member.parameter.numel() for member in members),
        str(members[0].norm),
        members[0].reason,
    )
