"""The blocks of a model: repeated modules, in every tower and stage.

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

from dropmuon.model.names import unwrapped

__all__ = ["Tower", "is_in", "main_towers"]

Items = list[tuple[str, nn.Module]]
"""Modules with their paths."""

Lists = Callable[[str, nn.Module], list[Items]]
"""A way to find the lists that a module holds, each as its items."""


@dataclass(frozen=True)
class Tower:
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
        return any(is_in(path, own) for own, _ in self.items)

    def overlaps(self, other: Tower) -> bool:
        """Whether an item of one tower lies in an item of the other."""
        mine, theirs = self.items, other.items
        return any(map(other.holds, dict(mine))) or any(map(self.holds, dict(theirs)))


def main_towers(model: nn.Module) -> list[Tower]:
    """Return the towers of a model: those of blocks, and the lists with most of the parameters.

    Where no list has blocks, the latter alone decide, and others of their size, unless numbered
    children have more of the parameters. (The four `Sequential`s of a ResNet have.)
    """
    named = list(_towers("", model, _containers))
    lists, found = (_containers, named) if named else (_numbered, [*_towers("", model, _numbered)])
    towers = [Tower(tower.path, _without_stages(tower.items, lists)) for tower in found]
    outside = [each for each in _all_lists(model) if not any(t.holds(each.path) for t in found)]
    best = max(outside, key=lambda tower: tower.spread, default=Tower("", []))
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


def _apart(candidates: Iterable[Tower], towers: Sequence[Tower]) -> Iterator[Tower]:
    """Iterate over the candidates that overlap neither with towers nor with larger candidates."""
    kept = list(towers)
    for each in sorted(candidates, key=lambda tower: -tower.spread):
        if not any(map(each.overlaps, kept)):
            kept.append(each)
            yield each


def _all_lists(model: nn.Module) -> Iterator[Tower]:
    """Iterate over all that could be the blocks: the items of all lists that one module holds."""
    for path, module in model.named_modules():
        yield Tower(path, [item for items in _containers(path, module) for item in items])
    if isinstance(model, nn.ModuleList | nn.Sequential):
        yield Tower("", _items("", model))


def _towers(path: str, module: nn.Module, lists: Lists) -> Iterator[Tower]:
    """Iterate over the outermost lists that have blocks, those of one module together."""
    is_list = not path and isinstance(module, nn.ModuleList | nn.Sequential)
    items = _items(path, module) if is_list else []
    if not _repeated(items):
        items = [item for each in lists(path, module) for item in each]
    if _repeated(items):
        yield Tower(path, items)
    else:
        items = []
    for name, child in _items(path, module):
        if not any(is_in(own, name) for own, _ in items):
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
    """Return the children of a module, without what wraps them."""
    prefix = f"{path}." if path else ""
    return [unwrapped(f"{prefix}{name}", child) for name, child in module.named_children()]


def is_in(name: str, path: str) -> bool:
    """Return whether a name lies in a module of this path, or is the path."""
    return f"{name}.".startswith(f"{path}.")
