"""The output layer of a model: known by what it is, however the model is cut into layers.

It is the module that uses parameters last, unless that module shows the model to have no head: it
is a normalisation, a pooler, or part of a block that the model repeats. A model of several towers
may have further heads, which stand beside its blocks and are named as heads. Where the last use is
that of an embedding, the two are tied: then the embedding is the output layer as well.

A tied embedding is looked up at the bottom and multiplied at the top. With its earliest use it
would move only when backward reaches the bottom. With the head it moves whenever the head does, and
its look-up is left out of the gradient while the layer at its place is inactive: see
`backward.lookups`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from dropmuon.backward.lookups import LookUp
from dropmuon.checks import unknown_name, warn
from dropmuon.model.forward import Uses
from dropmuon.model.roster import Member

__all__ = [
    "Place",
    "Tied",
    "check_tied",
    "find_lookups",
    "first_or_head",
    "mark_outputs",
    "rank_of",
]

Tied = Literal["first", "head"]
"""Which layer an embedding that is tied to the head moves with."""

_HEADS = re.compile(r"(^|_)(heads?|classifier|score|logits|outputs?|projection|predictor)(_|$)")
"""Names of heads beside others. `fc` is not among them: fc1 and fc2 often precede fc3."""

_POOLERS = re.compile(r"(^|[._])pool(er|ing)?([._]|$)")


@dataclass(frozen=True, eq=False)
class Place:
    """One place where a model holds a parameter, in order of registration.

    A tied parameter has several.
    """

    path: str
    module: nn.Module
    member: Member
    rank: int


def mark_outputs(model: nn.Module, places: Sequence[Place]) -> None:
    """Set `output` and `tied` of the members at these places, which are in order of use."""
    for place in places:
        place.member.output = False
    owners = _owners(places)
    blocks = _repeated_blocks(model)
    outside = [path for path in owners if not _inside(path, blocks)]
    for path in _last_and_named(list(owners), outside):
        maps = [place.member for place in owners[path] if place.member.is_matrix]
        for member in maps[-1:]:  # a module may hold all matrices of a model, as parameters
            member.tied = member.is_embedding
            member.output = not member.is_embedding


def _last_and_named(owners: list[str], outside: list[str]) -> list[str]:
    """Return the paths of the last module, where it is a head, and of further heads."""
    found = [last for last in owners[-1:] if last in outside and not _POOLERS.search(last)]
    after = owners[_end_of_blocks(owners, set(outside)) :]
    depth = _depth_of_wrappers(owners)
    ends = {"".join(path.split(".")[depth : depth + 1]): path for path in after}
    named = [path for child, path in ends.items() if _HEADS.search(child)]
    return list(dict.fromkeys(found + named))


def _depth_of_wrappers(owners: list[str]) -> int:
    """Return how many modules are around all others, as a wrapper is around a model."""
    paths, depth = [path.split(".") for path in owners if path], 0
    while len({path[depth] for path in paths if len(path) > depth}) == 1:
        depth += 1
    return depth


def _end_of_blocks(owners: list[str], outside: set[str]) -> int:
    """Return how many modules come before the end of the last block; all, if there are none."""
    inside = [number for number, path in enumerate(owners) if path not in outside]
    return inside[-1] + 1 if inside else len(owners)


def _owners(places: Sequence[Place]) -> dict[str, list[Place]]:
    """Return the places of each module, by its path, in order of use."""
    owners: dict[str, list[Place]] = {}
    for place in places:
        owners.setdefault(place.path, []).append(place)
    return owners


def _inside(path: str, blocks: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[: n + 1]) in blocks for n in range(len(parts)))


def _repeated_blocks(model: nn.Module) -> set[str]:
    """Return the paths of items of containers that stand beside others of their kind."""
    blocks: set[str] = set()
    for path, container in model.named_modules():
        if not isinstance(container, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        looks = {name: _look(item) for name, item in container.named_children()}
        alike = list(looks.values())
        prefix = f"{path}." if path else ""
        blocks |= {
            f"{prefix}{name}"
            for name, look in looks.items()
            if look is not None and alike.count(look) > 1
        }
    return blocks


def _look(item: nn.Module) -> object:
    """Return what repeated blocks have in common; None for an item with fewer than two matrices.

    Blocks of a model have a class of their own, and may differ in width. Containers of torch are
    alike only if all their parameters are: the last of several may well be the head.
    """
    shapes = [tuple(parameter.shape) for parameter in item.parameters()]
    if sum(len(shape) >= 2 for shape in shapes) < 2:
        return None
    is_torch = type(item).__module__.startswith("torch.nn.modules.container")
    return (type(item), tuple(shapes)) if is_torch else type(item)


def check_tied(tied: object) -> None:
    """Raise ValueError for a name of no choice."""
    if tied not in ("first", "head"):
        raise unknown_name("tied", str(tied), ["first", "head"])


def rank_of(place: Place, uses: Uses | None) -> float:
    """Return when a module is called or, where that is not known, registered."""
    return place.rank if uses is None else uses.module_rank(place.module)


def first_or_head(places: Sequence[Place], uses: Uses | None, tied: Tied) -> Place:
    """Return the place that a parameter belongs to, of all its places.

    At the head, its record is still that of a table: which layer it moves with changes no norm.
    """
    first = min(places, key=lambda place: rank_of(place, uses))
    if len({id(place.module) for place in places}) == 1:
        return first
    head = _head(places, uses) if tied == "head" else None
    if head is not None:
        head.member.kind = next(place.member.kind for place in places if _looks_up(place))
        return head
    names = ", ".join(repr(place.member.name) for place in places)
    warn(
        f"{names} are one tied parameter: it belongs to its earliest use, {first.member.name!r}, "
        "and moves with that layer only"
    )
    return first


def find_lookups(
    own: Member, places: Sequence[Place], ranked: Iterable[tuple[float, Member]], uses: Uses | None
) -> tuple[LookUp, ...]:
    """Return the look-ups of a weight that belongs to the head, each with what is used after it.

    `ranked` are all parameters in order. After the last of them, a look-up counts to the layer of
    its weight.
    """
    others = [(rank, other.parameter) for rank, other in ranked if other is not own]
    found = []
    for place in filter(_looks_up, places):
        rank = rank_of(place, uses)
        after = [other for other_rank, other in others if other_rank > rank]
        name = place.member.name.rpartition(".")[0]
        found.append(LookUp(name, own.name, (*after, own.parameter), place.module))
    return tuple(found)


def _head(places: Sequence[Place], uses: Uses | None) -> Place | None:
    """Return the last place that multiplies, if there is a look-up before it."""
    lookups = [rank_of(place, uses) for place in places if _looks_up(place)]
    maps = [p for p in places if not _looks_up(p) and rank_of(p, uses) < float("inf")]
    last = max(maps, key=lambda place: rank_of(place, uses), default=None)
    if last is None or not lookups or rank_of(last, uses) < min(lookups):
        return None
    return last


def _looks_up(place: Place) -> bool:
    """Return whether a place is an embedding that has no other parameter to be cut off."""
    return isinstance(place.module, nn.Embedding) and len(list(place.module.parameters())) == 1
