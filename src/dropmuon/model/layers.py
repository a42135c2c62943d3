"""What is a layer: a model as an ordered list of groups of parameters.

`layer_groups` puts every trainable parameter of a model into exactly one layer and asks a policy
for its norm. Layers are ordered by execution where an example input is given, by registration
otherwise. The order decides only how much is saved, never what is computed: see `freezing`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from dropmuon.backward import marks
from dropmuon.checks import unknown_name
from dropmuon.model.order import first_uses
from dropmuon.model.policies import Policy, Site, groups_of

__all__ = [
    "By",
    "Layer",
    "Member",
    "layer_groups",
    "model_layers",
    "owner_label",
]

By = str | Callable[[str, nn.Parameter], Hashable]

_NEVER = 1 << 62
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class Member:
    """One parameter, the module that owns it, and its place in the order."""

    name: str
    parameter: nn.Parameter
    module: nn.Module
    rank: int

    @property
    def owner(self) -> str:
        """The qualified name of the owning module, or the model's class for its own parameters."""
        return owner_label(self.name, self.module)

    @property
    def is_wanted(self) -> bool:
        """Whether the user wants it trained, whatever an optimizer froze for the moment."""
        return marks.wants_training(self.parameter, (self.module, self.name.rpartition(".")[2]))


@dataclass(frozen=True)
class Layer:
    """A named group of parameters that move together."""

    name: str
    members: tuple[Member, ...]


def layer_groups(
    model: nn.Module,
    by: By = "module",
    policy: str | Policy = "spectral",
    example: Any = None,
    orthogonalize: Any = "newton-schulz",
    include_frozen: bool = False,
) -> list[dict[str, Any]]:
    """Parameter groups for `DropMuon`: one per layer and norm, each with its `layer` and reason.

    `by` is "module" (each module that owns parameters), "block" (the items of the model's main
    `ModuleList` or `Sequential`, with stem and head around them), or a callable of a parameter's
    name and the parameter that returns a label. `example` is an input of the model: a tensor, a
    tuple of positional or a dict of keyword arguments.
    """
    layers = model_layers(model, by, example, include_frozen)
    groups: list[dict[str, Any]] = []
    for index, layer in enumerate(layers):
        sites = (
            Site(member.name, member.parameter, member.module, index, len(layers))
            for member in layer.members
        )
        groups += groups_of(layer.name, sites, policy, orthogonalize)
    return groups


def model_layers(
    model: nn.Module, by: By = "module", example: Any = None, include_frozen: bool = False
) -> list[Layer]:
    """The layers of a model in order. Layers that are frozen as a whole are left out by default."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    members, unreached = _members(model, example)
    label = _labeller(model, by, members)
    found: dict[Hashable, list[Member]] = {}
    for member in members:
        found.setdefault(label(member), []).append(member)
    layers = [Layer(str(name), tuple(group)) for name, group in found.items()]
    if not include_frozen:
        layers = [layer for layer in layers if any(m.is_wanted for m in layer.members)]
    if not layers:
        raise ValueError(_nothing_to_train(model, has_parameters=bool(members)))
    return _adopt_unreached(layers, unreached)


def owner_label(name: str, module: nn.Module | None = None) -> str:
    """The label of the layer that owns a parameter: its qualified name without the last part."""
    head = name.rpartition(".")[0].partition(".parametrizations.")[0]
    return head or (type(module).__name__ if module is not None else name)


def clean_name(name: str) -> str:
    """A parameter's name without what DDP, FSDP, checkpointing and torch.compile put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _members(model: nn.Module, example: Any) -> tuple[list[Member], set[int]]:
    """Every parameter once, at its earliest use, in order; and the ids of those never used."""
    sites = _occurrences(model)
    uses = first_uses(_unwrap(model), example) if example is not None else None
    members, unreached = [], set()
    for place_in_order, (key, places) in enumerate(sites.items()):
        place, rank = places[0], place_in_order
        if uses is not None:
            place = min(places, key=lambda p: uses.module_rank(p[1]))
            if key not in uses.parameters:
                unreached.add(key)
            rank = uses.parameters.get(key, _NEVER)
        name, module, parameter = place
        members.append(Member(name, parameter, module, rank))
        if len({id(module) for _, module, _ in places}) > 1:
            names = ", ".join(repr(name) for name, _, _ in places)
            warnings.warn(
                f"{names} are one tied parameter: it belongs to its earliest use, {name!r}, and "
                "moves with that layer only",
                stacklevel=5,
            )
    return sorted(members, key=lambda member: member.rank), unreached


def _occurrences(model: nn.Module) -> dict[int, list[tuple[str, nn.Module, nn.Parameter]]]:
    """All the places of each parameter, by identity, in order of registration."""
    inner = _unwrap(model)
    places: dict[int, list[tuple[str, nn.Module, nn.Parameter]]] = {}
    for path, module in inner.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = clean_name(f"{path}.{name}" if path else name)
            if is_lazy(parameter):
                raise ValueError(
                    f"params has {full!r}, which has no shape yet; run the model once on an input "
                    "before making the optimizer"
                )
            places.setdefault(id(parameter), []).append((full, module, parameter))
    return places


def _unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside DDP, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def _labeller(model: nn.Module, by: By, members: list[Member]) -> Callable[[Member], Hashable]:
    if callable(by):
        return lambda member: by(member.name, member.parameter)
    if by == "module":
        return lambda member: member.owner
    if by == "block":
        labels = _block_labels(_unwrap(model), members)
        return lambda member: labels[member.name]
    if isinstance(by, str):
        raise unknown_name("by", by, ["module", "block"])
    raise TypeError(f"by must be 'module', 'block' or a callable, got {by!r}")


def _block_labels(model: nn.Module, members: list[Member]) -> dict[str, str]:
    """Blocks by their paths; what lies before, between and after them in runs of its own."""
    blocks = sorted((clean_name(path) for path in _main_blocks(model)), key=len, reverse=True)
    labels: dict[str, str] = {}
    run: list[str] = []
    seen_block = False

    def close(label: str | None) -> None:
        labels.update({name: label or owner_label(run[0]) for name in run})
        run.clear()

    for member in members:
        block = next((b for b in blocks if member.name.startswith(b + ".")), None)
        if block is None:
            run.append(member.name)
            continue
        close(None if seen_block else "stem")
        labels[member.name], seen_block = block, True
    close("head" if seen_block else "stem")
    return labels


def _main_blocks(model: nn.Module) -> list[str]:
    """Paths of the main blocks: the items of sibling containers that share the most parameters.

    A candidate is all the items of the containers that one module holds (a ResNet has four
    `Sequential`s side by side, a GPT one `ModuleList`). The best has many parameters and no item
    that holds nearly all of them.
    """
    candidates = [_items(path, module) for path, module in model.named_modules()]
    if isinstance(model, nn.ModuleList | nn.Sequential):
        candidates.append(list(model.named_children()))
    best = max(candidates, key=_spread)
    if _spread(best) == 0:
        raise ValueError(
            'by="block" needs a ModuleList or Sequential with two or more items that hold '
            f'parameters, and {type(model).__name__} has none; use by="module" or a callable'
        )
    return [path for path, _ in best]


def _items(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    prefix = f"{path}." if path else ""
    return [
        (f"{prefix}{name}.{item_name}", item)
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList | nn.Sequential)
        for item_name, item in child.named_children()
    ]


def _spread(items: list[tuple[str, nn.Module]]) -> int:
    sizes = [sum(p.numel() for p in item.parameters()) for _, item in items]
    return sum(sizes) - max(sizes, default=0)


def _adopt_unreached(layers: list[Layer], unreached: set[int]) -> list[Layer]:
    """Join layers that no forward reaches to the first reached one: no draw is theirs alone."""
    dead = [x for x in layers if all(id(m.parameter) in unreached for m in x.members)]
    live = [x for x in layers if x not in dead]
    if not dead:
        return layers
    names = ", ".join(repr(m.name) for x in dead for m in x.members)
    warnings.warn(
        f"the example's forward does not reach {names}; they were put into the first layer",
        stacklevel=4,
    )
    if not live:
        raise ValueError("example reaches no parameter of the model; give an input it is used on")
    lost = tuple(member for layer in dead for member in layer.members)
    return [Layer(live[0].name, live[0].members + lost), *live[1:]]


def _nothing_to_train(model: nn.Module, has_parameters: bool) -> str:
    kind = type(model).__name__
    if not has_parameters:
        return f"params has nothing to optimize: {kind} has no parameters"
    return (
        f"params has nothing to optimize: all parameters of {kind} are frozen; "
        "call requires_grad_(True) on those to train"
    )
