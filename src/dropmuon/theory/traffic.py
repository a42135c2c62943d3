"""The bytes that a step sends between ranks, with DDP, FSDP2 and HSDP.

They follow from rules of torch and of `dropmuon.step.sharded`:

- **Gather.** FSDP2 gathers every unit in a forward. The root unit stays; the others are gathered
  again in the backward, unless they are kept: those that backward reaches, and the one below,
  which is fetched ahead whether it is needed or not. All this is per part, as it is per
  accumulated batch.
- **Reduce.** FSDP2 reduces the gradients of active layers only: in every part, or once, in the last
  part, for all layers that were active in any. With HSDP, replicas then all-reduce their shards.
  DDP reduces every gradient, of frozen layers too, and a number per parameter: was it used?
- **Step.** With shards, one number per layer tells whether its gradient is finite. Matrices to be
  orthogonalised go to one rank each and come back, by two all-to-alls; a single one is gathered on
  all ranks. Lengths take one all-reduce. With DDP every rank does everything, and nothing travels.

A shard is ceil(rows / shards) rows, padded to that in gathers and reductions. All matrices to be
orthogonalised are taken to have the same norm and settings, so that they travel together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dropmuon.checks import unknown_name, whole_number
from dropmuon.samplers.base import ActiveSet, active_set

__all__ = ["Collective", "Spread", "Weight", "moving_matrices", "share_out", "step_traffic"]

Need: TypeAlias = Literal["whole", "length", "nothing"]
Kind: TypeAlias = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
Phase: TypeAlias = Literal["forward", "backward", "step"]
Among: TypeAlias = Literal["shards", "replicas"]
Bytes: TypeAlias = npt.NDArray[np.int64]

_BUCKET = 25 * 2**20
"""DDP's `bucket_cap_mb`: at most that many bytes of gradients are reduced at a time."""


@dataclass(frozen=True)
class Weight:
    """A parameter, as far as it matters to what travels.

    Attributes:
        shape: its shape; rows are what is sharded.
        layer: the layer of Drop-Muon that it belongs to, counted in order of execution.
        unit: what FSDP2 gathers together, in order of execution; 0 is the root, which has
            what no other unit has.
        needs: what its unit direction needs of other ranks: the "whole" matrix (Muon), its
            "length" (Euclidean), or "nothing" (AdamW, sign).
    """

    shape: tuple[int, ...]
    layer: int
    unit: int = 0
    needs: Need = "nothing"

    def __post_init__(self) -> None:
        for size in self.shape:
            whole_number("shape", size, remedy="give the sizes of a parameter with entries")
        whole_number("layer", self.layer, least=0)
        whole_number("unit", self.unit, least=0, remedy="0 is the root")
        if self.needs not in ("whole", "length", "nothing"):
            raise unknown_name("needs", self.needs, ("whole", "length", "nothing"))

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def product(self) -> int:
        """m^2 n for a matrix (m, n), m <= n: what one product of an orthogonalisation takes."""
        rows = self.shape[0] if self.shape else 1
        shorter, longer = sorted((rows, self.entries // rows))
        return shorter**2 * longer

    def held(self, shards: int) -> Bytes:
        """Return how many entries each of the shards has."""
        rows = self.shape[0] if self.shape else 1
        most = -(-rows // shards)
        return np.clip(rows - most * np.arange(shards), 0, most) * (self.entries // rows)


@dataclass(frozen=True)
class Spread:
    """How ranks hold a model: so many replicas, each of so many shards.

    One shard is DDP, one replica FSDP2, several of both HSDP.

    Attributes:
        shards: the ranks that hold one copy together.
        replicas: the number of copies.
        reshard: FSDP2's `reshard_after_forward`: units are freed after the forward, all but the
            root, as by default; or kept.
        gathered, reduced, exchanged: bytes per entry of what is gathered (parameters, in the type
            that they are used in), reduced (gradients) and exchanged (momenta).
    """

    shards: int = 1
    replicas: int = 1
    reshard: bool = True
    gathered: int = 4
    reduced: int = 4
    exchanged: int = 4

    def __post_init__(self) -> None:
        for name in ("shards", "replicas", "gathered", "reduced", "exchanged"):
            whole_number(name, getattr(self, name))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.shards * self.replicas


@dataclass(frozen=True, eq=False)
class Collective:
    """One call that all ranks make together.

    Attributes:
        kind: which one.
        phase: when: in the forward or the backward of a part, or in the step.
        part: in which part; the last one for the step.
        among: the ranks that take part: the shards of a copy, or the same shard of all copies.
        sent: the bytes that a rank hands in, for each of the shards.
        busiest: the most bytes that any rank hands in or, in an all-to-all, gets.
    """

    kind: Kind
    phase: Phase
    part: int
    among: Among
    sent: Bytes
    busiest: int


def step_traffic(
    weights: Sequence[Weight],
    spread: Spread,
    sets: Sequence[Iterable[int]],
    *,
    waiting: Collection[int] = (),
    reduce_each_part: bool = False,
) -> list[Collective]:
    """Return the collectives of a step.

    `sets` has the active set of each part; one set is a step without parts. `waiting` has the
    indices of weights that do not move because it is another one's turn. With
    `reduce_each_part` gradients are reduced in every part; otherwise in the last one, as with
    `no_sync` and `set_requires_gradient_sync(False)` in all others.
    """
    active = _checked(weights, sets)
    last = len(active) - 1
    found: list[Collective] = []
    for part, layers in enumerate(active):
        every = {layer for each in active for layer in each}
        reduced = set(layers) if reduce_each_part else every if part == last else set()
        if spread.shards > 1:
            found += _gathers(weights, spread, part, min(layers))
            found += _reductions(weights, spread, part, reduced)
        elif reduced:
            found += _buckets(weights, spread, part)
    if spread.shards > 1:
        found += _step(weights, spread, last, active, waiting)
    return found


def moving_matrices(
    weights: Sequence[Weight], sets: Iterable[Iterable[int]], waiting: Collection[int] = ()
) -> list[Weight]:
    """Return the weights that a step orthogonalises; arguments as for `step_traffic`."""
    return [w for w in _moving(weights, _checked(weights, sets), waiting) if w.needs == "whole"]


def share_out(costs: Sequence[float], ranks: int) -> list[int]:
    """Return a rank for each cost: the highest first, each to the rank with the least so far."""
    loads = [(0.0, rank) for rank in range(whole_number("ranks", ranks))]
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, owners[i] = loads[0]
        heapq.heapreplace(loads, (load + costs[i], owners[i]))
    return owners


def _checked(weights: Sequence[Weight], sets: Iterable[Iterable[int]]) -> list[ActiveSet]:
    if not weights:
        raise ValueError("weights must not be empty, got none; give one per parameter")
    layers = 1 + max(weight.layer for weight in weights)
    found = [active_set("sets", each, layers) for each in sets]
    if not found:
        raise ValueError("sets must not be empty, got none; give the active set of each part")
    return found


def _moving(
    weights: Sequence[Weight], active: Iterable[ActiveSet], waiting: Collection[int]
) -> list[Weight]:
    every = {layer for each in active for layer in each}
    return [w for i, w in enumerate(weights) if w.layer in every and i not in waiting]


def _gathers(
    weights: Sequence[Weight], spread: Spread, part: int, cutoff: int
) -> Iterator[Collective]:
    top: dict[int, int] = {}
    for weight in weights:
        top[weight.unit] = max(top.get(weight.unit, 0), weight.layer)
    sizes = {unit: _padded((w for w in weights if w.unit == unit), spread) for unit in sorted(top)}
    for size in sizes.values():
        yield _alike("all-gather", "forward", part, "shards", size * spread.gathered, spread)
    if spread.reshard:
        blocks = [unit for unit in sizes if unit]
        reached = [unit for unit in blocks if top[unit] >= cutoff]
        ahead = [unit for unit in blocks if top[unit] < cutoff][-1:]
        for unit in ahead + reached:
            size = sizes[unit] * spread.gathered
            yield _alike("all-gather", "backward", part, "shards", size, spread)


def _reductions(
    weights: Sequence[Weight], spread: Spread, part: int, layers: Collection[int]
) -> Iterator[Collective]:
    for unit in sorted({weight.unit for weight in weights}):
        chosen = [w for w in weights if w.unit == unit and w.layer in layers]
        size = _padded(chosen, spread) * spread.reduced
        if not chosen:
            continue
        whole = size * spread.shards
        yield _alike("reduce-scatter", "backward", part, "shards", whole, spread)
        if spread.replicas > 1:
            yield _alike("all-reduce", "backward", part, "replicas", size, spread)


def _buckets(weights: Sequence[Weight], spread: Spread, part: int) -> Iterator[Collective]:
    """Yield what DDP reduces: gradients in buckets of about equal size, and who was used."""
    total = spread.reduced * sum(weight.entries for weight in weights)
    sizes = [_BUCKET] * (total // _BUCKET) + [total % _BUCKET] * (total % _BUCKET > 0)
    for size in [*sizes, 4 * len(weights)]:
        yield _alike("all-reduce", "backward", part, "replicas", size, spread)


def _step(
    weights: Sequence[Weight],
    spread: Spread,
    part: int,
    active: Sequence[ActiveSet],
    waiting: Collection[int],
) -> Iterator[Collective]:
    flags = 4 * len({layer for each in active for layer in each})
    if spread.replicas > 1:
        yield _alike("all-reduce", "step", part, "replicas", flags, spread)
    yield _alike("all-reduce", "step", part, "shards", flags, spread)
    moving = _moving(weights, active, waiting)
    lengths = sum(weight.needs == "length" for weight in moving)
    if lengths:
        yield _alike("all-reduce", "step", part, "shards", 8 * lengths, spread)
    matrices = [weight for weight in moving if weight.needs == "whole"]
    if len(matrices) == 1:
        most = int(matrices[0].held(spread.shards).max()) * spread.exchanged
        yield _alike("all-gather", "step", part, "shards", most, spread)
    elif matrices:
        own, owned = np.zeros((2, spread.shards), dtype=np.int64)
        for weight, owner in zip(matrices, _owners(matrices, spread), strict=True):
            own += weight.held(spread.shards) * spread.exchanged
            owned[owner] += weight.entries * spread.exchanged
        most = int(max(own.max(), owned.max()))
        yield Collective("all-to-all", "step", part, "shards", own, most)
        yield Collective("all-to-all", "step", part, "shards", owned, most)


def _owners(matrices: Sequence[Weight], spread: Spread) -> list[int]:
    return share_out([float(weight.product) for weight in matrices], spread.shards)


def _padded(weights: Iterable[Weight], spread: Spread) -> int:
    """Return the entries of a shard of these weights, padded to that of the first rank."""
    return sum(int(weight.held(spread.shards)[0]) for weight in weights)


def _alike(
    kind: Kind, phase: Phase, part: int, among: Among, size: int, spread: Spread
) -> Collective:
    """Return a collective to which every rank contributes the same number of bytes."""
    return Collective(kind, phase, part, among, np.full(spread.shards, size), size)
