"""How long a step takes on many accelerators: a model, not a measurement.

Operations take 1 / (throughput * utilization) seconds each. A collective takes a latency, and its
bytes over the bandwidth of the slowest link. With n ranks on N nodes, k = n / N of them per node, a
rank that hands in S bytes, L bytes a second over a link inside of a node and B from each
accelerator into the network:

    all-gather       (n - 1) S / R                 n - 1 hops, N - 1 of them over the network
    reduce-scatter   (n - 1) / n S / R             the same
    all-reduce       2 (n - 1) / n S / R           twice as many; or a tree of depth log2(N)
    all-to-all       max((k-1) / n S / L, (n-k) / n S / B)   a message to each other rank

with R = L on one node and min(L, k B) on several: rings enter and leave a node over all its network
ports. The factors are those of nccl-tests (doc/PERFORMANCE.md) and, for the all-to-all, of pairwise
exchange (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005). Latencies, and the choice of protocol and of ring or tree by the least time, are
those of NCCL's own model (src/graph/tuning.cc).

In a step on shards, the rank with the most matrices to orthogonalise sets the time; exchange and
orthogonalisation follow each other. Gathers and reductions may run beside the passes: `overlapped`
hides as much of them as fits, `apart` none. The truth lies between.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dropmuon.checks import nonnegative_number, whole_number
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import StepCosts
from dropmuon.theory.traffic import (
    Collective,
    Spread,
    Weight,
    moving_matrices,
    share_out,
    step_traffic,
)

__all__ = ["H100", "Machine", "StepTime", "collective_seconds", "step_seconds"]

Operations = TypeVar("Operations", float, FloatArray)

_ITERATIONS = 5
"""Newton-Schulz steps of an orthogonalisation, each of 4 m^2 n + 2 m^3 operations."""

_RING = ((6.6, 0.6, 2.7, 0.25), (14.0, 1.9, 4.0, 0.92), (8.4, 3.4, 14.0, 1.0))
_TREE = ((6.8, 0.6, 5.0, 0.25), (14.0, 1.25, 8.5, 0.92), (0.0, 28.0, 28.0, 1.0))
"""NCCL's protocols LL, LL128 and Simple: microseconds of a call, of a hop inside of a node and of
one over the network, and the part of the bandwidth that they use."""


@dataclass(frozen=True)
class Machine:
    """Nodes of accelerators.

    Attributes:
        operations: peak throughput of an accelerator, in operations per second.
        utilization: the part of it that is reached.
        link: bytes per second between accelerators of a node, in each direction.
        network: bytes per second from an accelerator to other nodes, in each direction.
        node: accelerators per node.
    """

    operations: float
    utilization: float
    link: float
    network: float
    node: int = 8

    def __post_init__(self) -> None:
        for name in ("operations", "utilization", "link", "network"):
            if not nonnegative_number(name, getattr(self, name)):
                raise ValueError(f"{name} must be above 0, got 0; give what the vendor states")
        whole_number("node", self.node)

    def seconds(self, operations: Operations) -> Operations:
        """Return how long an accelerator takes for these operations."""
        return operations / (self.operations * self.utilization)


H100 = Machine(operations=989.4e12, utilization=0.4, link=450e9, network=50e9)
"""Eight H100 SXM per node, bfloat16 without sparsity; sources are in docs/scale.md."""


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step, by what they are spent on.

    Attributes:
        forward, backward, orthogonalize: computing.
        gather, reduce, exchange: communicating: parameters, gradients, and what a step needs.
        overlapped: the whole step, with gathers and reductions hidden behind the passes.
    """

    forward: float
    backward: float
    orthogonalize: float
    gather: float
    reduce: float
    exchange: float
    overlapped: float

    @property
    def apart(self) -> float:
        """The whole step, with nothing hidden."""
        computing = self.forward + self.backward + self.orthogonalize
        return computing + self.gather + self.reduce + self.exchange


def step_seconds(
    weights: Sequence[Weight],
    passes: StepCosts,
    spread: Spread,
    machine: Machine,
    sets: Sequence[Iterable[int]],
    tokens: float,
    *,
    waiting: Collection[int] = (),
    reduce_each_part: bool = False,
) -> StepTime:
    """Return how long a step takes in which every rank has so many tokens.

    `passes` has operations per token and layer: forward, backward (input gradients) and weight
    (weight gradients); its other costs are not used. `sets`, `waiting` and `reduce_each_part` are
    those of `step_traffic`; parts have equal numbers of tokens.
    """
    active = [tuple(each) for each in sets]
    count = len(active)
    gather, reduce, exchange = np.zeros((2, count)), np.zeros(count), 0.0
    for call in step_traffic(
        weights, spread, active, waiting=waiting, reduce_each_part=reduce_each_part
    ):
        seconds = collective_seconds(call, spread, machine)
        if call.phase == "step":
            exchange += seconds
        elif call.kind == "all-gather":
            gather[int(call.phase == "backward"), call.part] += seconds
        else:
            reduce[call.part] += seconds
    forward = np.full(count, tokens / count * passes.forward.sum())
    backward = tokens / count * np.array([_backward(passes, layers) for layers in active])
    forward, backward = machine.seconds(forward), machine.seconds(backward)
    orthogonalize = machine.seconds(_orthogonalized(weights, spread, active, waiting))
    hidden = np.maximum(forward, gather[0]) + np.maximum(backward, gather[1] + reduce)
    return StepTime(
        forward=float(forward.sum()),
        backward=float(backward.sum()),
        orthogonalize=orthogonalize,
        gather=float(gather.sum()),
        reduce=float(reduce.sum()),
        exchange=exchange,
        overlapped=float(hidden.sum()) + orthogonalize + exchange,
    )


def collective_seconds(call: Collective, spread: Spread, machine: Machine) -> float:
    """Return how long a collective takes; see the top of the module."""
    ranks = spread.shards if call.among == "shards" else spread.replicas
    if ranks == 1:
        return 0.0
    near = spread.shards if call.among == "shards" else machine.node // spread.shards
    near = max(1, min(near, machine.node, ranks))  # ranks of it on one node
    nodes = -(-ranks // near)
    rate = machine.link if nodes == 1 else min(machine.link, near * machine.network)
    if call.kind == "all-to-all":
        inside = (near - 1) / ranks * call.busiest / machine.link
        outside = (ranks - near) / ranks * call.busiest / machine.network
        return _quickest(_RING, near - 1, ranks - near, max(inside, outside))
    rounds = 2 if call.kind == "all-reduce" else 1
    moved = (ranks - 1) * call.busiest / (1 if call.kind == "all-gather" else ranks)
    inner, outer = rounds * (ranks - nodes), rounds * (nodes - 1)
    ring = _quickest(_RING, inner, outer, rounds * moved / rate)
    if call.kind != "all-reduce":
        return ring
    depth = math.ceil(math.log2(nodes))
    return min(ring, _quickest(_TREE, 2 * (near - 1), 2 * depth, 2 * moved / rate))


def _quickest(
    protocols: Iterable[tuple[float, float, float, float]], inner: int, outer: int, moving: float
) -> float:
    """Return the least time over protocols, for these hops and seconds at full bandwidth."""
    return min(
        1e-6 * (call + inner * near + outer * far) + moving / part
        for call, near, far, part in protocols
    )


def _backward(passes: StepCosts, layers: Sequence[int]) -> float:
    """Return the operations per token of a backward: down to the cutoff, and for active weights."""
    return float(passes.backward[min(layers) :].sum() + passes.weight[list(layers)].sum())


def _orthogonalized(
    weights: Sequence[Weight],
    spread: Spread,
    active: Sequence[Iterable[int]],
    waiting: Collection[int],
) -> float:
    """Return the operations of the rank that has the most to orthogonalise."""
    matrices = moving_matrices(weights, active, waiting)
    if spread.shards == 1 or len(matrices) == 1:
        return float(sum(map(_newton_schulz, matrices)))
    owners = share_out([float(weight.product) for weight in matrices], spread.shards)
    loads = np.zeros(spread.shards)
    for weight, owner in zip(matrices, owners, strict=True):
        loads[owner] += _newton_schulz(weight)
    return float(loads.max())


def _newton_schulz(weight: Weight) -> int:
    rows = weight.shape[0]
    shorter = min(rows, weight.entries // rows)
    return _ITERATIONS * (4 * weight.product + 2 * shorter**3)
