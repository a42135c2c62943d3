"""Parameter groups: layers and norms in torch's own form, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dropmuon.checks import kind_of
from dropmuon.model.compiled import mark_compiled
from dropmuon.model.layers import By, model_layers, numbered, owner_label
from dropmuon.model.policies import Choice, Policy, PolicyName, route, warn_of_guesses
from dropmuon.model.roster import Member, Roster
from dropmuon.model.ties import Tied
from dropmuon.norms import AdamW, Orthogonalize, by_name

__all__ = ["layer_groups", "make_groups", "read_groups"]


def layer_groups(
    model: nn.Module,
    by: By = "module",
    policy: PolicyName | Policy = "spectral",
    example: Any = None,
    orthogonalize: Orthogonalize = "newton-schulz",
    include_frozen: bool = False,
    tied: Tied = "head",
) -> list[dict[str, Any]]:
    """Return parameter groups for `DropMuon`: one per layer and norm, with `layer` and `reason`.

    `by` is "module" (each module that owns parameters), "block" (the items of the model's main
    `ModuleList` or `Sequential`, with stem and head around them), or a callable of a parameter's
    name and the parameter that returns a label. `example` is an input of the model: a tensor, a
    tuple of positional or a dict of keyword arguments. Layers that are frozen as a whole are left
    out unless `include_frozen`. `tied` is the layer of an embedding that is tied to the head: that
    of its "first" use, or the "head"; its group then has `lookups` for the optimizer.
    """
    roster = model_layers(model, by, example, include_frozen, tied)
    route(roster.members(), policy, orthogonalize)
    return _as_groups(roster)


def make_groups(
    params: nn.Module | Iterable[Any],
    by: By,
    example: Any,
    policy: PolicyName | Policy,
    orthogonalize: Orthogonalize,
    tied: Tied = "head",
) -> tuple[list[Any], dict[Tensor, Member]]:
    """Return what `torch.optim.Optimizer` takes, and the records of parameters made on the way.

    A model and `(name, parameter)` pairs become groups; groups and tensors stay as they are.
    """
    if isinstance(params, nn.Module):
        roster = model_layers(params, by, example, tied=tied)
        mark_compiled(params, roster)
    else:
        items = _listed(params)
        if not all(isinstance(item, tuple) for item in items):
            return items, {}
        roster = _named_layers(items)
    route(roster.members(), policy, orthogonalize)
    warn_of_guesses(roster.members(), policy)
    return _as_groups(roster), {member.parameter: member for member in roster.members()}


def read_groups(
    groups: Sequence[Mapping[str, Any]],
    known: Mapping[Tensor, Member],
    policy: PolicyName | Policy,
    orthogonalize: Orthogonalize,
) -> Roster:
    """Read the layers off an optimizer's parameter groups: in order of mention, integers sorted.

    A parameter that has no record in `known` gets one. Without a `layer` it belongs to the module
    named by its own name or, without a name, to a layer of its own; without a `norm`, the policy
    chooses.
    """
    layers: dict[Hashable, list[Member]] = {}
    for member, label in _labelled(groups, known):
        layers.setdefault(label, []).append(member)
    if all(isinstance(label, int) for label in layers):
        layers = dict(sorted(layers.items()))
    roster = numbered(layers)
    unrouted = []
    for member in roster.members():
        group = groups[member.group]
        if group.get("norm") is None:
            unrouted.append(member)
            continue
        member.norm = by_name(group["norm"], orthogonalize)
        member.reason = group.get("reason") or "given with the group"
    _route_alone(unrouted, policy, orthogonalize)
    _share_norms(roster)
    return roster


def _labelled(
    groups: Sequence[Mapping[str, Any]], known: Mapping[Tensor, Member]
) -> Iterator[tuple[Member, Hashable]]:
    count = 0
    for number, group in enumerate(groups):
        given = group.get("param_names")
        for position, parameter in enumerate(group["params"]):
            name = given[position] if given else f"param{count}"
            member = known.get(parameter) or Member(name, parameter)
            member.check()
            member.group = number
            label = group.get("layer")
            yield member, owner_label(name) if label is None else label
            count += 1


def _route_alone(
    members: Sequence[Member], policy: PolicyName | Policy, orthogonalize: Orthogonalize
) -> None:
    """Route members of groups without a norm; AdamW needs a group with its own learning rate."""
    route(members, policy, orthogonalize)
    for member in members:
        if isinstance(member.norm, AdamW):
            raise ValueError(
                f"policy gives {member.name!r} to AdamW, which needs a learning rate of its own; "
                "pass the model or (name, parameter) pairs, or a group with norm='adamw' and its lr"
            )
    warn_of_guesses(members, policy)


def _share_norms(roster: Roster) -> None:
    """Make equal norms one object, by which a step groups parameters that move together."""
    same: dict[Any, Any] = {}
    for member in roster.members():
        member.norm = same.setdefault(member.norm, member.norm)


def _listed(params: Iterable[Any]) -> list[Any]:
    if isinstance(params, Tensor | str | type) or not isinstance(params, Iterable):
        raise TypeError(
            f"params must be a model or an iterable of parameters, got {kind_of(params)}; "
            "give model, model.parameters(), model.named_parameters() or groups"
        )
    items = list(params)
    if not items:
        raise ValueError("params has nothing to optimize: it is empty")
    return items


def _named_layers(pairs: Iterable[tuple[str, Tensor]]) -> Roster:
    """Return the layers of `(name, parameter)` pairs: a layer per owning module, by name."""
    layers: dict[Hashable, list[Member]] = {}
    for name, parameter in pairs:
        layers.setdefault(owner_label(name), []).append(Member(name, parameter))
    return numbered(layers)


def _as_groups(roster: Roster) -> list[dict[str, Any]]:
    """Return torch's parameter groups of a roster: one per layer and norm."""
    groups: list[dict[str, Any]] = []
    for name, layer in zip(roster.names, roster.layers, strict=True):
        alike: dict[Choice, list[tuple[str, Tensor]]] = {}
        for member in layer:
            choice = Choice(member.norm, member.reason)
            alike.setdefault(choice, []).append((member.name, member.parameter))
        groups += [
            {"params": named, "layer": name, "norm": choice.norm, "reason": choice.reason}
            for choice, named in alike.items()
        ]
    lookups = {member.parameter: member.lookups for member in roster.members() if member.lookups}
    for group in groups if lookups else ():
        found = [each for _, own in group["params"] for each in lookups.get(own, ())]
        group.update({"lookups": tuple(found)} if found else {})
    return groups
