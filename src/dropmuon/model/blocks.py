"""The blocks of a model, for `by="block"`: repeated modules, in every tower and stage.

A block is an item of a list that has another item like it, with two or more matrices. A list is a
`ModuleList` or a `Sequential`, or children with numbered names where there are no such lists. A
model may have several towers of blocks (encoder and decoder, vision and text), and the items of a
list may be stages, which hold lists of blocks. Where no list has blocks of this kind, the items of
the lists with most of the parameters are the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import nn

from dropmuon.model.names import clean_name, owner_label
from dropmuon.model.roster import Member

__all__ = ["block_labels"]

Items = list[tuple[str, nn.Module]]
"""Modules with their paths."""

Lists = Callable[[str, nn.Module], list[Items]]
"""A way to find the lists that a module holds, each as its items."""


def block_labels(model: nn.Module, members: Sequence[Member]) -> dict[str, str]:
    """Return the label of each parameter, by name: its block, or what lies around the blocks.

    What comes before the first block is the "stem", after the last the "head"; what lies between
    is named after its module, and cut where one tower ends and the next begins. What holds only
    vectors, such as the norm after the last block, joins what comes before it.
    """
    towers = _main_towers(model)
    homes = _homes([clean_name(tower.path) for tower in towers])
    blocks = {
        clean_name(path): home
        for tower, home in zip(towers, homes, strict=True)
        for path, _ in tower.items
    }
    labels: dict[str, str] = {}
    run: list[str] = []
    last: str | None = None
    for name in (member.name for member in members):
        block = _within(name, blocks)
        if block is None:
            run.append(name)
            continue
        if last is None:
            labels |= dict.fromkeys(run, "stem")
        elif run:
            apart = blocks[last] != blocks[block]
            labels |= _between(run, homes if apart else (), blocks, labels)
        labels[name], last, run = block, block, []
    labels |= dict.fromkeys(run, "head" if last is not None else "stem")
    return _with_vectors_joined(labels, members)


def _homes(holders: Sequence[str]) -> list[str]:
    """Return the largest module around each tower that holds no other tower.

    The norm after the last block of a tower is often not beside the blocks, but further out.
    """
    homes: list[str] = []
    for own in holders:
        parts = own.split(".")
        around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        others = [other for other in holders if other != own]
        alone = (path for path in around if not any(_is_in(other, path) for other in others))
        homes.append(next(alone, own))
    return homes


def _is_in(name: str, path: str) -> bool:
    return f"{name}.".startswith(f"{path}.")


def _between(
    run: Sequence[str], homes: Sequence[str], blocks: Iterable[str], used: dict[str, str]
) -> dict[str, str]:
    """Return labels of parameters between blocks, cut where another tower's parameters begin."""
    parts: dict[str | None, list[str]] = {}
    for name in run:
        parts.setdefault(_within(name, homes), []).append(name)
    labels: dict[str, str] = {}
    for part in parts.values():
        owners = [owner_label(name) for name in part]
        common = _common_path(owners)
        holds_blocks = not common or any(_is_in(block, common) for block in blocks)
        taken = {*used.values(), *labels.values()}
        label = owners[0] if holds_blocks or common in taken else common
        labels |= dict.fromkeys(part, label)
    return labels


def _with_vectors_joined(labels: dict[str, str], members: Sequence[Member]) -> dict[str, str]:
    """Join layers without a matrix to the layer before, or the first ones to the layer after.

    Such a layer costs next to nothing, and would be drawn as often as a block.
    """
    has_matrix: dict[str, bool] = {}
    for member in members:
        label = labels[member.name]
        has_matrix[label] = has_matrix.get(label, False) or member.parameter.ndim > 1
    last = next((label for label, found in has_matrix.items() if found), None)
    if last is None:
        return labels
    into: dict[str, str] = {}
    for label, found in has_matrix.items():
        last = label if found else last
        into[label] = last
    return {name: into[label] for name, label in labels.items()}


def _within(name: str, paths: Iterable[str]) -> str | None:
    """Return the longest of some paths that a name lies in."""
    parts = name.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1))
    return next((prefix for prefix in prefixes if prefix in paths), None)


def _common_path(paths: Sequence[str]) -> str:
    first, *others = (path.split(".") for path in paths)
    count = 0
    while count < len(first) and all(other[: count + 1] == first[: count + 1] for other in others):
        count += 1
    return ".".join(first[:count])


# Towers


@dataclass(frozen=True)
class _Tower:
    """The blocks of the lists that one module holds."""

    path: str
    items: Items

    @property
    def spread(self) -> int:
        """How many parameters lie outside the largest item."""
        sizes = [sum(p.numel() for p in item.parameters()) for _, item in self.items]
        return sum(sizes) - max(sizes, default=0)

    def holds(self, path: str) -> bool:
        """Whether a path lies in one of the items, or is one."""
        return any(_is_in(path, own) for own, _ in self.items)

    def overlaps(self, other: _Tower) -> bool:
        mine, theirs = self.items, other.items
        return any(map(other.holds, dict(mine))) or any(map(self.holds, dict(theirs)))


def _main_towers(model: nn.Module) -> list[_Tower]:
    """Return the towers of a model: those of blocks, and the lists with most of the parameters.

    Where no list has blocks, the latter alone decide, and others of their size, unless numbered
    children have more of the parameters. (The four `Sequential`s of a ResNet have.)
    """
    named = list(_towers("", model, _containers))
    lists, found = (_containers, named) if named else (_numbered, [*_towers("", model, _numbered)])
    towers = [_Tower(tower.path, _without_stages(tower.items, lists)) for tower in found]
    outside = [each for each in _all_lists(model) if not any(t.holds(each.path) for t in found)]
    best = max(outside, key=lambda tower: tower.spread, default=_Tower("", []))
    if named and best.spread > 0:
        towers += _apart([best], towers)
    elif best.spread > sum(tower.spread for tower in found):
        of_a_size = [each for each in outside if 2 * each.spread >= best.spread]
        towers = [best, *_apart(of_a_size, [best])]
    if not towers:
        raise ValueError(
            'by="block" needs a ModuleList or Sequential with two or more items that hold '
            f'parameters, and {type(model).__name__} has none; use by="module" or a callable'
        )
    return towers


def _apart(candidates: Iterable[_Tower], towers: Sequence[_Tower]) -> Iterator[_Tower]:
    """Iterate over the candidates that overlap neither with towers nor with larger candidates."""
    kept = list(towers)
    for each in sorted(candidates, key=lambda tower: -tower.spread):
        if not any(map(each.overlaps, kept)):
            kept.append(each)
            yield each


def _all_lists(model: nn.Module) -> Iterator[_Tower]:
    """Iterate over all that could be the blocks: the items of all lists that one module holds."""
    for path, module in model.named_modules():
        yield _Tower(path, [item for items in _containers(path, module) for item in items])
    if isinstance(model, nn.ModuleList | nn.Sequential):
        yield _Tower("", list(model.named_children()))


def _towers(path: str, module: nn.Module, lists: Lists) -> Iterator[_Tower]:
    """Iterate over the outermost lists that have blocks, those of one module together."""
    is_list = not path and isinstance(module, nn.ModuleList | nn.Sequential)
    items = _items(path, module) if is_list else []
    if not _repeated(items):
        items = [item for each in lists(path, module) for item in each]
    if _repeated(items):
        yield _Tower(path, items)
    else:
        items = []
    for name, child in _items(path, module):
        if not any(_is_in(own, name) for own, _ in items):
            yield from _towers(name, child, lists)


def _without_stages(items: Items, lists: Lists) -> Items:
    """Return the items of a tower, with stages replaced by what is in their lists of blocks."""
    kinds = {type(block) for path, item in items for block in _inner_blocks(path, item, lists)}
    found: Items = []
    for path, item in items:
        inner = [
            inside
            for inside in _lists_inside(path, item, lists)
            if any(type(module) in kinds for _, module in inside)
        ]
        flat = [pair for inside in inner for pair in inside]
        found += _without_stages(flat, lists) if flat else [(path, item)]
    return found


def _inner_blocks(path: str, item: nn.Module, lists: Lists) -> list[nn.Module]:
    """Return the blocks that an item holds in lists, if these make up nearly all of it: a stage.

    A block of a transformer may hold lists too, of experts say, but also attention beside them.
    """
    inside = _lists_inside(path, item, lists)
    blocks = _repeated([pair for each in inside for pair in each])
    if not blocks:
        return []
    full = [each for each in inside if any(module in blocks for _, module in each)]
    within = sum(_matrices(module) for each in full for _, module in each)
    beside = _matrices(item) - within
    return blocks if beside < min(map(_matrices, blocks)) else []


def _lists_inside(path: str, item: nn.Module, lists: Lists) -> list[Items]:
    if isinstance(item, nn.ModuleList | nn.Sequential):
        return [_items(path, item)]
    return lists(path, item)


def _repeated(items: Items) -> list[nn.Module]:
    """Return the modules with two or more matrices that have another one like them."""
    large = [module for _, module in items if _matrices(module) > 1]
    found = {id(each): each for pair in combinations(large, 2) if _alike(*pair) for each in pair}
    return list(found.values())


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules are of one class, and so are their children of the same name.

    A wrapper of attention is not like one of an MLP; a missing child or an `Identity` is no
    difference, as a shortcut that only the first block of a stage needs.
    """
    mine, theirs = dict(one.named_children()), dict(other.named_children())
    return type(one) is type(other) and all(
        type(mine[name]) is type(theirs[name])
        or isinstance(mine[name], nn.Identity)
        or isinstance(theirs[name], nn.Identity)
        for name in mine.keys() & theirs.keys()
    )


def _matrices(module: nn.Module) -> int:
    return sum(parameter.ndim > 1 for parameter in module.parameters())


# Lists


def _containers(path: str, module: nn.Module) -> list[Items]:
    """Return the items of each `ModuleList` and `Sequential` among the children of a module."""
    return [
        _items(name, child)
        for name, child in _items(path, module)
        if isinstance(child, nn.ModuleList | nn.Sequential)
    ]


def _numbered(path: str, module: nn.Module) -> list[Items]:
    """Return the children of a module that differ in the number at the end of their names."""
    families: dict[str, Items] = {}
    for name, child in _items(path, module):
        stem = re.sub(r"\d+$", "", name)
        if stem != name:
            families.setdefault(stem, []).append((name, child))
    return [family for family in families.values() if len(family) > 1]


def _items(path: str, module: nn.Module) -> Items:
    prefix = f"{path}." if path else ""
    return [(f"{prefix}{name}", child) for name, child in module.named_children()]
