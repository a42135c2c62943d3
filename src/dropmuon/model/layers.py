"""The layers of a model, as an ordered list.

Every trainable parameter of a model is in exactly one layer. Layers are ordered by execution where
an example input is given, by registration otherwise. The order decides only how much is saved,
never what is computed: see `backward.flags`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dropmuon.checks import unknown_name, warn
from dropmuon.model.forward import Uses, first_uses
from dropmuon.model.outputs import Place, mark_outputs
from dropmuon.model.roster import Member, Roster
from dropmuon.model.ties import Tied, check_tied, find_lookups, first_or_head, rank_of

__all__ = ["By", "model_layers", "numbered", "owner_label"]

By = Literal["module", "block"] | Callable[[str, nn.Parameter], Hashable]

_NEVER = 1 << 62
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def model_layers(
    model: nn.Module,
    by: By = "module",
    example: Any = None,
    include_frozen: bool = False,
    tied: Tied = "head",
) -> Roster:
    """Return the layers of a model, in order; norms are not chosen yet."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    check_tied(tied)
    members, unreached = _members(model, example, tied)
    label = _labeller(model, by, members)
    layers: dict[Hashable, list[Member]] = {}
    for member in members:
        layers.setdefault(label(member), []).append(member)
    if not include_frozen:
        layers = {name: own for name, own in layers.items() if any(m.is_wanted for m in own)}
    if not layers:
        raise ValueError(_nothing_to_train(model, has_parameters=bool(members)))
    return numbered(_adopt_unreached(layers, unreached))


def numbered(layers: Mapping[Hashable, Sequence[Member]]) -> Roster:
    """Return labelled layers as a roster, with the layer of each member set."""
    for index, members in enumerate(layers.values()):
        for member in members:
            member.layer, member.num_layers = index, len(layers)
    return Roster(tuple(map(str, layers)), tuple(map(tuple, layers.values())))


def _members(model: nn.Module, example: Any, tied: Tied) -> tuple[list[Member], set[Tensor]]:
    """Return every parameter once, where it belongs, in order; and those never used."""
    model = _unwrap(model)
    uses = first_uses(model, example) if example is not None else None
    all_places = _places(model)
    ranked: list[tuple[float, Member]] = []
    at_head: list[tuple[Member, list[Place]]] = []
    unreached: set[Tensor] = set()
    for places in all_places.values():
        own = first_or_head(places, uses, tied)
        member, rank = own.member, rank_of(own, uses)
        if own is not min(places, key=lambda place: rank_of(place, uses)):
            at_head.append((member, places))
        elif uses is not None:
            rank = uses.parameters.get(id(member.parameter), _NEVER)
            if rank == _NEVER:
                unreached.add(member.parameter)
        ranked.append((rank, member))
    ranked.sort(key=lambda pair: pair[0])
    members = [member for _, member in ranked]
    for member, places in at_head:
        member.lookups = find_lookups(member, places, ranked, uses)
    mark_outputs(model, _in_order(all_places, members, uses))
    return members, unreached


def _places(model: nn.Module) -> dict[int, list[Place]]:
    """Return all the places of each parameter, by identity, in order of registration."""
    places: dict[int, list[Place]] = {}
    rank = 0
    for path, module in model.named_modules():
        parent = model.get_submodule(path.rpartition(".")[0]) if path else None
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = _clean_name(f"{path}.{name}" if path else name)
            if is_lazy(parameter):
                raise ValueError(
                    f"params has {full!r}, which has no shape yet; run the model once on an input "
                    "before creating the optimizer"
                )
            member = Member(full, parameter, module, parent=parent)
            place = Place(path, module, member, rank)
            rank += 1
            places.setdefault(id(parameter), []).append(place)
    return places


def _in_order(
    places: Mapping[int, Sequence[Place]], members: Sequence[Member], uses: Uses | None
) -> list[Place]:
    """Return all places in order of use, or of registration, each with its parameter's one record.

    What no forward reaches has no place in an order of use. A module that uses a tied parameter
    later than others uses it when it is called.
    """
    records = {id(member.parameter): member for member in members}
    ranked: list[tuple[float, Place]] = []
    for own in places.values():
        for place in own:
            parameter, rank = id(place.member.parameter), float(place.rank)
            if uses is not None:
                tied = len(own) > 1
                used = uses.parameters.get(parameter, math.inf)
                rank = uses.module_rank(place.module) if tied else used
            if rank < math.inf:
                ranked.append((rank, replace(place, member=records[parameter])))
    return [place for _, place in sorted(ranked, key=lambda pair: pair[0])]


def _labeller(model: nn.Module, by: By, members: Sequence[Member]) -> Callable[[Member], Hashable]:
    if callable(by):
        return lambda member: by(member.name, member.parameter)  # type: ignore[arg-type]
    if by not in ("module", "block"):
        raise _unknown_by(by)
    if by == "module":
        return lambda member: owner_label(member.name, member.module)
    labels = _block_labels(_unwrap(model), [member.name for member in members])
    return lambda member: labels[member.name]


def _unknown_by(given: object) -> Exception:
    if isinstance(given, str):
        return unknown_name("by", given, ["module", "block"])
    return TypeError(f"by must be 'module', 'block' or a callable, got {given!r}")


def _adopt_unreached(
    layers: Mapping[Hashable, list[Member]], unreached: set[Tensor]
) -> Mapping[Hashable, list[Member]]:
    """Join layers that no forward reaches to the first reached one, so that none is drawn alone."""
    dead = {k: own for k, own in layers.items() if all(m.parameter in unreached for m in own)}
    if not dead:
        return layers
    lost = [member for own in dead.values() for member in own]
    names = ", ".join(repr(member.name) for member in lost)
    warn(f"the example's forward does not reach {names}; they were put into the first layer")
    live = {name: own for name, own in layers.items() if name not in dead}
    if not live:
        raise ValueError("example reaches no parameter of the model; give an input that it uses")
    first = next(iter(live))
    return {**live, first: live[first] + lost}


def _nothing_to_train(model: nn.Module, has_parameters: bool) -> str:
    kind = type(model).__name__
    if not has_parameters:
        return f"params has nothing to optimize: {kind} has no parameters"
    return (
        f"params has nothing to optimize: all parameters of {kind} are frozen; "
        "call requires_grad_(True) on those to train"
    )


def _block_labels(model: nn.Module, names: Sequence[str]) -> dict[str, str]:
    """Return the label of each parameter, by name: its block, or the run before or after blocks.

    What comes before the first block is the "stem", after the last the "head"; what lies between
    blocks is named after its first module.
    """
    blocks = sorted((_clean_name(path) for path in _main_blocks(model)), key=len, reverse=True)
    labels: dict[str, str] = {}
    run: list[str] = []
    seen_block = False

    def close(label: str | None) -> None:
        labels.update({name: label or owner_label(run[0]) for name in run})
        run.clear()

    for name in names:
        block = next((b for b in blocks if name.startswith(b + ".")), None)
        if block is None:
            run.append(name)
            continue
        close(None if seen_block else "stem")
        labels[name], seen_block = block, True
    close("head" if seen_block else "stem")
    return labels


def _main_blocks(model: nn.Module) -> list[str]:
    """Return the paths of the items of sibling containers that share the most parameters.

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
    """Return how many parameters lie outside the largest item."""
    sizes = [sum(p.numel() for p in item.parameters()) for _, item in items]
    return sum(sizes) - max(sizes, default=0)


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own model inside DDP, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def _clean_name(name: str) -> str:
    """Return a name without what DDP, FSDP, checkpointing and torch.compile add to it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def owner_label(name: str, module: nn.Module | None = None) -> str:
    """Return the layer that owns a parameter: its qualified name without the last part."""
    head = name.rpartition(".")[0].partition(".parametrizations.")[0]
    return head or (type(module).__name__ if module is not None else name)
