"""The output layer of a model: known by what it is, however the model is cut into layers.

It is the module that uses parameters last, unless that module shows the model to have no head: it
is a normalisation, a pooler, or part of a block that the model repeats. A model of several towers
may have further heads, which stand beside its blocks and are named as heads. Where the last use is
that of an embedding, the two are tied: then the embedding is the output layer as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dropmuon.model.roster import Member

__all__ = ["Place", "mark_outputs"]

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
