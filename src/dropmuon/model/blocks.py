"""Layers by block: a label for each parameter, its block or what lies around the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from dropmuon.model.names import clean_name, owner_label
from dropmuon.model.roster import Member
from dropmuon.model.towers import is_in, main_towers

__all__ = ["block_labels"]


def block_labels(model: nn.Module, members: Sequence[Member]) -> dict[str, str]:
    """Return the label of each parameter, by name: its block, or what lies around the blocks.

    What comes before the first block is the "stem", after the last the "head"; what lies between
    is named after its module, and cut where one tower ends and the next begins. What holds only
    vectors, such as the norm after the last block, joins what comes before it.
    """
    towers = main_towers(model)
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
    if run:
        end = "stem" if last is None else _free("head", run, labels)
        labels |= dict.fromkeys(run, end)
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
        alone = (path for path in around if not any(is_in(other, path) for other in others))
        homes.append(next(alone, own))
    return homes


def _between(
    run: Sequence[str], homes: Sequence[str], blocks: Iterable[str], used: dict[str, str]
) -> dict[str, str]:
    """Return labels of parameters between blocks, cut where another tower's parameters begin."""
    parts: dict[str | None, list[str]] = {}
    for name in run:
        parts.setdefault(_within(name, homes), []).append(name)
    labels: dict[str, str] = {}
    for part in parts.values():
        common = _common_path([owner_label(name) for name in part])
        if not common or any(is_in(block, common) for block in blocks):
            common = owner_label(part[0])
        labels |= dict.fromkeys(part, _free(common, part, {**used, **labels}))
    return labels


def _free(label: str, names: Sequence[str], labels: dict[str, str]) -> str:
    """Return a label for parameters, or where it is taken, a name of theirs that is not."""
    taken = {*labels.values()}
    return next(each for each in (label, *map(owner_label, names), *names) if each not in taken)


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
