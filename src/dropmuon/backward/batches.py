"""The cutting of a batch, of any form, into the parts of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor

__all__ = ["cut"]


def cut(batch: Any, count: int) -> tuple[list[Any], list[int]]:
    """Cut a batch into pieces of nearly equal size along its first axis; also return the sizes.

    Tensors are cut, and so are lists with one item per example. Mappings, lists and tuples of
    these are cut item by item and keep their type. Everything else goes into each piece.
    """
    lengths = set(_lengths(batch))
    if len(lengths) != 1:
        found = f"lengths {sorted(lengths)}" if lengths else "no tensor with an axis"
        raise ValueError(
            f"split needs tensors of equal length, that of the batch, got {found}; leave out "
            "whatever has no entry per example"
        )
    (size,) = lengths
    if size < count:
        raise ValueError(
            f"split needs at least one example per part, got {size} for parts={count}; use larger "
            "batches or fewer parts, and drop_last=True for the last batch of an epoch"
        )
    bounds = [size * part // count for part in range(count + 1)]
    pieces = [_sliced(batch, slice(*ends), size) for ends in pairwise(bounds)]
    return pieces, [end - start for start, end in pairwise(bounds)]


def _lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, Tensor):
        if batch.ndim:
            yield len(batch)
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from _lengths(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _lengths(item)


def _sliced(batch: Any, where: slice, size: int) -> Any:
    if isinstance(batch, Tensor):
        return batch[where] if batch.ndim else batch
    if isinstance(batch, Mapping):
        items = {key: _sliced(item, where, size) for key, item in batch.items()}
        return items if type(batch) is dict else type(batch)(items)  # type: ignore[call-arg]
    if isinstance(batch, list | tuple):
        if len(batch) == size and not any(True for _ in _lengths(batch)):
            return batch[where]
        found = [_sliced(item, where, size) for item in batch]
        return type(batch)(*found) if hasattr(batch, "_fields") else type(batch)(found)
    return batch
