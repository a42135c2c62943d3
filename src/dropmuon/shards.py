"""What this rank holds of a parameter that is spread over several, as FSDP2 and TP spread them.

Such a parameter is a `DTensor`: its shape is that of the whole, and each rank holds a region of it.
Here is where each region lies, and who holds the others. Nothing is assumed about the number of
ranks: regions may be of unequal size, or empty.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, distributed

__all__ = ["Layout", "any_sharded", "is_sharded", "layout_of", "local", "local_gradient", "placed"]

Group = Any
"""A process group of torch.distributed."""

_JOINED: weakref.WeakKeyDictionary[Group, dict[tuple[int, ...], Group]]
_JOINED = weakref.WeakKeyDictionary()
"""Groups of ranks along several dimensions of a mesh, by the default group they were made in."""


def is_sharded(x: Tensor) -> bool:
    """Return whether a tensor is a `DTensor`; without importing what makes those."""
    made = sys.modules.get("torch.distributed.tensor")
    return made is not None and isinstance(x, made.DTensor)


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    """Return whether any tensor is a `DTensor`."""
    return "torch.distributed.tensor" in sys.modules and any(map(is_sharded, tensors))


def local(x: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, sharing its storage. Use it without autograd."""
    if not is_sharded(x):
        return x
    mine: Any = x.to_local()  # type: ignore[attr-defined]
    return mine.wait() if hasattr(mine, "wait") else mine  # type: ignore[no-any-return]


def local_gradient(parameter: Any) -> Tensor:
    """Return this rank's region of a gradient, which lies where that of the parameter does.

    Tensor parallelism may leave a gradient as terms that are still to be summed over ranks.
    """
    gradient = parameter.grad
    if is_sharded(gradient) and gradient.placements != parameter.placements:
        parameter.grad = gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


def placed(whole: Tensor, like: Any) -> Tensor:
    """Return a tensor that every rank has as a whole, spread as another one is, in its own type."""
    made, layout = sys.modules["torch.distributed.tensor"], layout_of(like)
    mine = layout.cut(whole.to(like.device), layout.position)
    found: Tensor = made.DTensor.from_local(
        mine,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return found


def layout_of(x: Any) -> Layout:
    """Return how a `DTensor` is spread."""
    return _layout(x.device_mesh, tuple(x.placements), tuple(x.shape), _default_group())


@dataclass(frozen=True, eq=False)
class Layout:
    """How a tensor of this shape is spread over a mesh of ranks."""

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups along all dimensions of the mesh; together they connect all its ranks."""
        return tuple(self.mesh.get_group(n) for n in range(self.mesh.ndim) if self.mesh.size(n) > 1)

    def groups_across(self, axes: Iterable[int]) -> tuple[Group, ...]:
        """Return the groups whose ranks hold different places along any of these axes."""
        wanted = set(axes)
        return tuple(self.mesh.get_group(n) for n, axis in self._cuts if axis in wanted)

    @cached_property
    def axes_cut(self) -> frozenset[int]:
        """The axes along which no rank has all places."""
        return frozenset(axis for _, axis in self._cuts)

    @cached_property
    def holders(self) -> Group:
        """The group of the ranks that hold the whole together, this one among them."""
        dims = [n for n, _ in self._cuts]
        if len(dims) == 1:
            return self.mesh.get_group(dims[0])
        own = self.mesh.get_coordinate()
        at = tuple(slice(None) if n in dims else own[n] for n in range(self.mesh.ndim))
        return _joined(tuple(sorted(self.mesh.mesh[at].flatten().tolist())))

    @cached_property
    def position(self) -> int:
        """The rank of this process among the holders."""
        return distributed.get_rank(self.holders) if self._cuts else 0

    @cached_property
    def regions(self) -> list[tuple[slice | Tensor, ...]]:
        """Where each holder's region lies: its places along each axis."""
        if not self._cuts:
            return [tuple(slice(None) for _ in self.shape)]
        ranks = distributed.get_process_group_ranks(self.holders)
        return [self._region((self.mesh.mesh == rank).nonzero()[0].tolist()) for rank in ranks]

    @cached_property
    def sizes(self) -> list[int]:
        """How many entries each holder has."""
        return [math.prod(self._shape(region)) for region in self.regions]

    def cut(self, whole: Tensor, holder: int) -> Tensor:
        """Return a holder's region of the whole tensor, contiguous."""
        return whole[_index(self.regions[holder])].contiguous()

    def joined(self, regions: Sequence[Tensor]) -> Tensor:
        """Return the whole tensor from the regions of all holders, given flat."""
        whole = regions[0].new_empty(self.shape)
        for region, piece in zip(self.regions, regions, strict=True):
            whole[_index(region)] = piece.reshape(self._shape(region))
        return whole

    @cached_property
    def _cuts(self) -> tuple[tuple[int, int], ...]:
        """The dimensions of the mesh that cut an axis, with that axis."""
        return tuple(
            (n, placement.dim % len(self.shape))
            for n, placement in enumerate(self.placements)
            if self.mesh.size(n) > 1 and not (placement.is_replicate() or placement.is_partial())
        )

    def _shape(self, region: Iterable[slice | Tensor]) -> tuple[int, ...]:
        return tuple(
            len(range(size)[at]) if isinstance(at, slice) else len(at)
            for at, size in zip(region, self.shape, strict=True)
        )

    def _region(self, coordinate: Sequence[int]) -> tuple[slice | Tensor, ...]:
        places = [torch.arange(size) for size in self.shape]
        for n, axis in self._cuts:
            # FSDP over TP: the axis was cut by TP before, which comes after it in the mesh.
            before = int(getattr(self.placements[n], "split_factor", 1))
            pieces = [
                _chunk(_chunk(places[axis], before, piece), self.mesh.size(n), coordinate[n])
                for piece in range(before)
            ]
            places[axis] = torch.cat(pieces)
        return tuple(map(_slice_if_possible, places))


@lru_cache(maxsize=4096)
def _layout(
    mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...], default: object
) -> Layout:
    return Layout(mesh, placements, shape)


def _default_group() -> object:
    """Return what is another object after a process group is destroyed and made again."""
    return weakref.ref(distributed.group.WORLD)


def _joined(ranks: tuple[int, ...]) -> Group:
    """Return the group of these ranks, all of which ask for it at the same time."""
    default = distributed.group.WORLD
    if len(ranks) == distributed.get_world_size():
        return default
    known = _JOINED.setdefault(default, {})
    if ranks not in known:
        known[ranks] = distributed.new_group(list(ranks), use_local_synchronization=True)
    return known[ranks]


def _chunk(places: Tensor, count: int, number: int) -> Tensor:
    """Return one of `count` pieces, as `torch.chunk` cuts; the last ones may be empty."""
    size = -(-len(places) // count)
    return places[number * size : (number + 1) * size]


def _slice_if_possible(places: Tensor) -> slice | Tensor:
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def _index(region: tuple[slice | Tensor, ...]) -> tuple[Any, ...]:
    """Return an index of a region; places that are no range are combined with all others."""
    if all(isinstance(at, slice) for at in region):
        return region
    places = [torch.arange(at.start, at.stop) if isinstance(at, slice) else at for at in region]
    return torch.meshgrid(*places, indexing="ij")
