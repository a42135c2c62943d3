"""Unit directions of parameters that are spread over ranks; what travels is what moves.

Momentum stays where it is. A unit direction needs other ranks only where its norm does:

- Entries, rows or columns that a rank has as a whole are its own business.
- Lengths of what is cut are sums of squares: one all-reduce of a number per row, column or tensor.
- A matrix that is to be orthogonalised has to be in one place. If it is the only one, every rank
  gathers it: all of them would wait for one, and this way nothing has to be sent back. Several are
  shared out, the most expensive first, each to the rank that has the least to do, so that equal
  ones go round. With W ranks this sends 2/W of the bytes that gathering all of them everywhere
  takes, and each rank multiplies 1/W of them.

With replicated groups of ranks (HSDP), every group does this for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from dropmuon.norms import Norm
from dropmuon.norms.numerics import length
from dropmuon.shards import Group, Layout, is_sharded, layout_of

__all__ = ["agreed", "summed", "unit_directions"]


def unit_directions(
    norm: Norm, tensors: Sequence[Tensor], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Return what this rank holds of the unit directions, from what it holds of the tensors."""
    layouts = [layout_of(parameter) for parameter in parameters]
    apart, lengths, whole = _sorted_by_need(norm, layouts)
    found: dict[int, Tensor] = {}
    for indices, method in ((apart, _apart), (lengths, _by_length), (whole, _from_wholes)):
        chosen = [tensors[i] for i in indices], [layouts[i] for i in indices]
        found.update(zip(indices, method(norm, *chosen), strict=True))
    return [found[i] for i in range(len(tensors))]


def summed(numbers: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return sums over whole tensors from those over what each rank holds, one per parameter."""
    layouts = [layout_of(parameter) for parameter in parameters]
    return _all_reduced(numbers, [each.groups_across(each.axes_cut) for each in layouts])


def agreed(flags: Mapping[int, Tensor], parameters: Iterable[Tensor]) -> dict[int, Tensor]:
    """Return flags that are true where they are on all ranks of these parameters.

    One small all-reduce for each dimension of their mesh.
    """
    sharded = [parameter for parameter in parameters if is_sharded(parameter)]
    device = sharded[0].device
    every = torch.stack([flag.to(device) for flag in flags.values()]).to(torch.int32)
    for group in dict.fromkeys(group for each in sharded for group in layout_of(each).groups):
        distributed.all_reduce(every, distributed.ReduceOp.MIN, group=group)
    return dict(zip(flags, every.bool().unbind(), strict=True))


def _sorted_by_need(
    norm: Norm, layouts: Sequence[Layout]
) -> tuple[list[int], list[int], list[int]]:
    """Return which tensors a rank handles alone, which by lengths, and which as a whole."""
    apart: list[int] = []
    lengths: list[int] = []
    whole: list[int] = []
    for i, layout in enumerate(layouts):
        reach = norm.reach(layout.shape)
        if layout.axes_cut.isdisjoint(reach.axes):
            apart.append(i)
        else:
            (lengths if reach.by_length else whole).append(i)
    return apart, lengths, whole


def _apart(norm: Norm, tensors: list[Tensor], layouts: list[Layout]) -> list[Tensor]:
    """Return unit directions of what this rank has: its scale is that of the whole shape."""
    units = norm.unit_directions(tensors)
    for unit, layout in zip(units, layouts, strict=True):
        if unit.numel() and unit.shape != layout.shape:
            unit.mul_(norm.factor(layout.shape) / norm.factor(unit.shape))
    return units


def _by_length(norm: Norm, tensors: list[Tensor], layouts: list[Layout]) -> list[Tensor]:
    """Return tensors over their lengths, to which all ranks contribute; zero stays zero."""
    axes = [norm.reach(layout.shape).axes for layout in layouts]
    groups = [each.groups_across(along) for each, along in zip(layouts, axes, strict=True)]
    squares = _all_reduced(
        [_squares(x, along) for x, along in zip(tensors, axes, strict=True)], groups
    )
    units = []
    for x, square, layout in zip(tensors, squares, layouts, strict=True):
        lengths = square.sqrt().clamp(min=torch.finfo(torch.float64).tiny)
        units.append((x.double() / lengths * norm.factor(layout.shape)).to(x.dtype))
    return units


def _squares(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return sums of squares along axes, which stay with size one; in float64, nothing overflows.

    An empty tensor contributes zeros.
    """
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not x.numel():
        return x.new_zeros(shape, dtype=torch.float64)
    return length(x, axes).double().square().reshape(shape)


def _all_reduced(tensors: Sequence[Tensor], groups: Sequence[tuple[Group, ...]]) -> list[Tensor]:
    """Return sums over groups of ranks; one all-reduce for all that have their groups in common."""
    alike: dict[tuple[Group, ...], list[int]] = {}
    for i, each in enumerate(groups):
        alike.setdefault(each, []).append(i)
    found = list(tensors)
    for across, indices in alike.items():
        flat = torch.cat([tensors[i].reshape(-1) for i in indices])
        for group in across:
            distributed.all_reduce(flat, group=group)
        parts = flat.split([tensors[i].numel() for i in indices])
        for i, part in zip(indices, parts, strict=True):
            found[i] = part.reshape(tensors[i].shape)
    return found


def _from_wholes(norm: Norm, tensors: list[Tensor], layouts: list[Layout]) -> list[Tensor]:
    alike: dict[Group, list[int]] = {}
    for i, layout in enumerate(layouts):
        alike.setdefault(layout.holders, []).append(i)
    found: dict[int, Tensor] = {}
    for indices in alike.values():
        method = _on_every_rank if len(indices) == 1 else _shared_out
        chosen = [tensors[i] for i in indices], [layouts[i] for i in indices]
        found.update(zip(indices, method(norm, *chosen), strict=True))
    return [found[i] for i in range(len(tensors))]


def _on_every_rank(norm: Norm, tensors: list[Tensor], layouts: list[Layout]) -> list[Tensor]:
    """Gather a tensor on all its holders; each keeps its own region of the unit direction."""
    (x,), (layout,) = tensors, layouts
    most = max(layout.sizes)
    mine = x.new_zeros(most)
    mine[: x.numel()] = x.reshape(-1)
    gathered = list(x.new_empty(len(layout.sizes), most).unbind())
    distributed.all_gather(gathered, mine, group=layout.holders)
    regions = [each[:size] for each, size in zip(gathered, layout.sizes, strict=True)]
    unit = norm.unit_direction(layout.joined(regions))
    return [layout.cut(unit, layout.position)]


def _shared_out(norm: Norm, tensors: list[Tensor], layouts: list[Layout]) -> list[Tensor]:
    """Send each tensor to one of its holders, and what it finds back to all of them."""
    group, me = layouts[0].holders, layouts[0].position
    holders = range(len(layouts[0].sizes))
    owners = _owners([_cost(norm, layout) for layout in layouts], len(holders))
    owned = [[i for i, owner in enumerate(owners) if owner == holder] for holder in holders]
    sizes = [[layouts[i].sizes[holder] for i in owned[me]] for holder in holders]
    arrived = _exchanged(
        [[tensors[i] for i in owned[holder]] for holder in holders], sizes, tensors[0], group
    )
    wholes = [
        layouts[i].joined([arrived[holder][n] for holder in holders])
        for n, i in enumerate(owned[me])
    ]
    units = norm.unit_directions(wholes)
    cut = [
        [layouts[i].cut(unit, holder) for i, unit in zip(owned[me], units, strict=True)]
        for holder in holders
    ]
    sizes = [[tensors[i].numel() for i in owned[holder]] for holder in holders]
    back = _exchanged(cut, sizes, tensors[0], group)
    found: dict[int, Tensor] = {}
    for indices, pieces in zip(owned, back, strict=True):
        found.update(zip(indices, pieces, strict=True))
    return [found[i].reshape(x.shape) for i, x in enumerate(tensors)]


def _cost(norm: Norm, layout: Layout) -> float:
    whole = torch.empty(layout.shape, device="meta")
    return norm.direction_cost(whole) or float(whole.numel())


def _owners(costs: Sequence[float], ranks: int) -> list[int]:
    """Return a rank for each cost: the highest first, each to the rank with the least so far."""
    loads, owners = [0.0] * ranks, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[i] = min(range(ranks), key=loads.__getitem__)
        loads[owners[i]] += costs[i]
    return owners


def _exchanged(
    sent: Sequence[Sequence[Tensor]], sizes: Sequence[Sequence[int]], like: Tensor, group: Any
) -> list[list[Tensor]]:
    """Send a list of tensors to each rank; return the lists from each, flat, of these sizes."""
    flat = torch.cat([like.new_empty(0), *(x.reshape(-1) for each in sent for x in each)])
    arrived = like.new_empty(sum(map(sum, sizes)))
    distributed.all_to_all_single(
        arrived,
        flat,
        [sum(each) for each in sizes],
        [sum(x.numel() for x in each) for each in sent],
        group=group,
    )
    pieces = iter(arrived.split([size for each in sizes for size in each]))
    return [[next(pieces) for _ in each] for each in sizes]
