"""Parameter groups: layers and norms in torch's own form, and back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dropmuon.checks import kind_of, warn
from dropmuon.model.compiled import mark_compiled
from dropmuon.model.layers import By, Structure, model_layers, numbered
from dropmuon.model.names import owner_label
from dropmuon.model.outputs import Tied
from dropmuon.model.policies import Policy, PolicyName, check_pieces, route, warn_of_guesses
from dropmuon.model.roster import Member, Roster
from dropmuon.model.routing import LOOKUPS, Routing, as_groups
from dropmuon.norms import AdamW, Orthogonalize, by_name

__all__ = ["find_in_model", "layer_groups", "make_groups", "read_groups"]


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

    `by` is "module" (each module that owns parameters), "block" (the repeated items of its
    `ModuleList`s and `Sequential`s in all towers and stages, with stem and head around them), or a
    callable of a parameter's name and the parameter that returns a label. `example` is an input of
    the model: a tensor, a tuple of positional or a mapping of keyword arguments. Layers that are
    frozen as a whole are left out unless `include_frozen`. `tied` is the layer of an embedding that
    is tied to the head: that of its "first" use, or the "head"; its group then has `lookups` for
    the optimizer.
    """
    roster = model_layers(model, by, example, include_frozen, tied)
    check_pieces(model.named_parameters(), policy)
    route(roster.members(), policy, orthogonalize)
    return as_groups(zip(roster.names, roster.layers, strict=True))


def make_groups(
    params: nn.Module | Iterable[Any],
    by: By,
    example: Any,
    routing: Routing,
    model: nn.Module | None = None,
    tied: Tied = "head",
) -> tuple[list[Any], dict[Tensor, Member], Structure | None]:
    """Return what `torch.optim.Optimizer` takes, the records made on the way, and the structure.

    A model and `(name, parameter)` pairs become groups; groups and tensors stay as they are, unless
    there is a `model` to find them in.
    """
    structure: Structure | None = None
    if isinstance(params, nn.Module):
        if model is not None and model is not params:
            raise ValueError(
                f"model is to find parameters in, but params is a model, {type(params).__name__}, "
                "itself; leave out one of them"
            )
        structure = Structure(params, by, example, tied)
        roster = structure.roster()
        check_pieces(params.named_parameters(), routing.policy)
        mark_compiled(params, roster.members())
    else:
        items = _listed(params)
        if model is not None:
            structure = Structure(model, by, example, tied)
            check_pieces(model.named_parameters(), routing.policy)
            are_groups = all(isinstance(item, Mapping) for item in items)
            groups = find_in_model(items if are_groups else [{"params": items}], structure, routing)
            return groups, structure.records, structure
        if not all(isinstance(item, tuple) for item in items):
            _warn_of_lost_order(items)
            return items, {}, None
        roster = _named_layers(items)
    route(roster.members(), routing.policy, routing.orthogonalize)
    warn_of_guesses(roster.members(), routing.policy)
    groups = as_groups(zip(roster.names, roster.layers, strict=True))
    return groups, {member.parameter: member for member in roster.members()}, structure


def _warn_of_lost_order(items: Iterable[Any]) -> None:
    """Warn about groups without names, matrices first and vectors after: no order of layers."""
    groups = [item["params"] for item in items if isinstance(item, Mapping) and "layer" not in item]
    shapes = [
        [parameter.ndim > 1 for parameter in each if isinstance(parameter, Tensor)]
        for each in groups
        if isinstance(each, list | tuple)
    ]
    matrices = [any(each) for each in shapes]
    after = [each for n, each in enumerate(shapes) if any(matrices[:n]) and not any(each)]
    if sum(map(sum, shapes)) > 1 and any(len(each) > 1 for each in after):
        warn(
            "params has groups without names, matrices first and vectors after: each parameter is "
            "a layer, and their order is not that of the model, so backward can hardly stop early. "
            "Give model=model too, or the model itself instead of groups"
        )


def find_in_model(
    groups: Iterable[Mapping[str, Any]],
    structure: Structure,
    routing: Routing,
    present: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Return groups of a model's parameters as groups per layer and norm, beside those present.

    What a group says holds; what it leaves open is as if the model itself had been given. Its
    learning rate is that of norms: what the policy gives to AdamW has its own in proportion.
    What is not in the model stays a group as it was.
    """
    layers: dict[str, list[Member]] = {
        str(each["layer"]): [] for each in present if "layer" in each
    }
    found: list[tuple[Mapping[str, Any], dict[str, list[Member]], list[Any]]] = []
    for group in groups:
        own: dict[str, list[Member]] = {}
        others: list[Any] = []
        for item in _items(group):
            place = structure.place(item[1] if isinstance(item, tuple) else item)
            if place is None:
                others.append(_named(item))
                continue
            label = place[0] if group.get("layer") is None else str(group["layer"])
            own.setdefault(label, []).append(place[1])
            layers.setdefault(label, []).append(place[1])
        found.append((group, own, others))
    mark_compiled(structure.model, structure.records.values())
    for index, label in enumerate(sorted(layers, key=structure.position)):
        for member in layers[label]:
            member.layer, member.num_layers = index, len(layers)
    taken = {each["name"] for each in present if "name" in each}
    pieces: list[dict[str, Any]] = []
    for group, own, others in found:
        pieces += _pieces(group, own, routing, taken)
        pieces += [{**group, "params": others}] if others else []
    return pieces


def _pieces(
    group: Mapping[str, Any], layers: Mapping[str, list[Member]], routing: Routing, taken: set[str]
) -> Iterator[dict[str, Any]]:
    """Cut a group into groups of one layer and norm, which keep its settings."""
    members = [member for own in layers.values() for member in own]
    if group.get("norm") is None:
        route(members, routing.policy, routing.orthogonalize)
    else:
        for member in members:
            member.norm = by_name(group["norm"], routing.orthogonalize)
            member.reason = group.get("reason") or "given with the group"
    replaced = ("params", "param_names", LOOKUPS)
    kept = {key: value for key, value in group.items() if key not in replaced}
    for piece in as_groups(layers.items(), taken):
        taken.add(piece["name"])
        own = {} if group.get("layer") is None else {"layer": group["layer"]}
        if group.get("norm") is None and "lr" in group:
            own |= routing.rates_at(piece["norm"], group["lr"])
        yield {**kept, **piece, **own}


def _named(item: Any) -> Any:
    """Return a parameter that is not in the model, which needs a name, as all others have one."""
    if isinstance(item, Tensor):
        raise ValueError(
            f"params has a tensor of shape {tuple(item.shape)} that is not in the model; give it "
            "as a pair (name, parameter), and a layer to join unless it is a layer of its own"
        )
    return item


def _items(group: Mapping[str, Any]) -> list[Any]:
    """Return the parameters of a group, named or not; torch refuses a set, which has no order."""
    params = group["params"]
    return [params] if isinstance(params, Tensor | set) else list(params)


def read_groups(
    groups: Sequence[Mapping[str, Any]],
    known: Mapping[Tensor, Member],
    routing: Routing,
    structure: Structure | None = None,
) -> Roster:
    """Read the layers off an optimizer's parameter groups.

    They are in the order of the model where its structure is known, otherwise in order of mention,
    integers sorted. A parameter that has no record in `known` gets one. Without a `layer` it
    belongs to the module named by its own name or, without a name, to a layer of its own; without a
    `norm`, the policy chooses.
    """
    layers: dict[Hashable, list[Member]] = {}
    for member, label in _labelled(groups, known):
        layers.setdefault(label, []).append(member)
    if all(isinstance(label, int) for label in layers):
        layers = dict(sorted(layers.items()))
    elif structure is not None:
        layers = {label: layers[label] for label in sorted(layers, key=structure.position)}
    roster = numbered(layers)
    unrouted = []
    for member in roster.members():
        group = groups[member.group]
        if group.get("norm") is None:
            unrouted.append(member)
            continue
        member.norm = by_name(group["norm"], routing.orthogonalize)
        member.reason = group.get("reason") or "given with the group"
    _route_alone(unrouted, routing)
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


def _route_alone(members: Sequence[Member], routing: Routing) -> None:
    """Route members of groups without a norm; AdamW needs a group with its own learning rate."""
    route(members, routing.policy, routing.orthogonalize)
    for member in members:
        if isinstance(member.norm, AdamW):
            raise ValueError(
                f"policy gives {member.name!r} to AdamW, which needs a learning rate of its own; "
                "pass the model or (name, parameter) pairs, or a group with norm='adamw' and its lr"
            )
    warn_of_guesses(members, routing.policy)


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
