"""What a step sends is what was predicted, to the byte, on two and on four ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dropmuon import DropMuon, norms
from dropmuon.samplers import ActiveSet, Shares
from dropmuon.step.sharded import _owners
from dropmuon.theory import Spread, Weight, moving_matrices, share_out, step_traffic
from tests.ranks import run_on_ranks
from tests.step.sharded_runs import Net, batch, hsdp, make
from tests.step.traffic import Traffic

KINDS = {
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "allreduce_": "all-reduce",
    "alltoall_base_": "all-to-all",
}
SETS: list[ActiveSet] = [
    (0, 1, 2, 3, 4),
    (1, 2, 3, 4),
    (2, 3, 4),
    (3, 4),
    (4,),
    (0, 4),
    (1, 2),
    (3,),
]
PARTS = 4
SHARES = (0.25, 0.25, 0.5, 0.5, 1.0)

needs_gloo = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)


class Run:
    """A model that is spread over all ranks, and the bytes that it should send and does."""

    def __init__(self, way: str, mixed: bool = False, **settings: Any) -> None:
        ranks = distributed.get_world_size()
        self.model: Net = make().float() if mixed else make()
        size = 4 if mixed else 8
        sizes = {"gathered": 2 if mixed else size, "reduced": size, "exchanged": size}
        copies = {"ddp": ranks, "hsdp": 2}.get(way, 1)
        self.spread = Spread(ranks // copies, copies, way != "kept", **sizes)
        self.net: nn.Module = self.model
        if way == "ddp":
            self.net = DistributedDataParallel(self.model, find_unused_parameters=True)
        elif way == "hsdp":
            hsdp(self.model)
        else:
            types = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else None
            for module in (*self.model.blocks, self.model):
                fully_shard(
                    module,
                    reshard_after_forward=None if self.spread.reshard else False,
                    mp_policy=types or MixedPrecisionPolicy(),
                )
        self.optimizer = DropMuon(self.model, lr=0.05, by="block", **settings)
        self.weights = [weight_of(member) for member in self.optimizer.roster.members()]
        self.steps = 0

    def step(self, reduce_each_part: bool = False) -> tuple[Counter[str], Counter[str], bool]:
        """Take a step; return the bytes sent and predicted by kind, and whether matrices wait."""
        drawn: list[ActiveSet] = []
        turn = self.optimizer.draws.turn_at(self.steps)
        members = list(self.optimizer.roster.members())
        with Traffic() as traffic:
            for part in range(self.optimizer.parts):
                drawn.append(self.optimizer.active)
                with self.synced(reduce_each_part or part == self.optimizer.parts - 1):
                    ranks, rank = distributed.get_world_size(), distributed.get_rank()
                    x, y = (each.chunk(ranks)[rank] for each in batch(part))
                    F.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        waiting = {
            i for i, m in enumerate(members) if None not in (turn, m.turn) and m.turn != turn
        }
        calls = step_traffic(
            self.weights, self.spread, drawn, waiting=waiting, reduce_each_part=reduce_each_part
        )
        predicted: Counter[str] = Counter()
        for call in calls:
            predicted[call.kind] += int(call.sent[distributed.get_rank() % self.spread.shards])
        sent: Counter[str] = Counter()
        for name, size in traffic.bytes.items():
            sent[KINDS[name]] += size
        assert traffic.calls.total() == len(calls)
        return sent, predicted, bool(waiting)

    def synced(self, reduces: bool) -> Any:
        if isinstance(self.net, DistributedDataParallel):
            return nullcontext() if reduces else self.net.no_sync()
        model: Any = self.model
        model.set_requires_gradient_sync(reduces)
        return nullcontext()


def weight_of(member: Any) -> Weight:
    unit = int(member.name.split(".")[1]) + 1 if member.name.startswith("blocks") else 0
    shape = tuple(member.parameter.shape)
    if isinstance(member.norm, norms.AdamW):
        return Weight(shape, member.layer, unit)
    return Weight(shape, member.layer, unit, "whole" if len(shape) > 1 else "length")


def sends_for_every_set(way: str, **settings: Any) -> None:
    run = Run(way, **settings)
    totals = []
    for active in SETS:
        run.optimizer.activate(active)
        sent, predicted, _ = run.step()
        assert sent == predicted, active
        totals.append(sent.total())
    if way == "ddp":
        assert len(set(totals)) == 1
    else:
        assert totals[0] > totals[2] > totals[4]


def sends_in_parts(way: str, reduce_each_part: bool) -> None:
    run = Run(way, policy="muon", sampler=Shares(SHARES), parts=PARTS)
    for _ in range(4):
        sent, predicted, _ = run.step(reduce_each_part)
        assert sent == predicted


def sends_in_turns(way: str) -> None:
    run = Run(way, policy="muon", sampler="full", turns=2)
    waited = []
    for _ in range(4):
        sent, predicted, waits = run.step()
        assert sent == predicted
        waited.append(waits)
    assert waited == [False, True, True, True]


def cases(ways: Sequence[str]) -> list[Any]:
    found: list[Any] = [partial(sends_in_turns, way) for way in ways]
    for way in ways:
        found += [partial(sends_for_every_set, way, **each) for each in ({}, {"policy": "muon"})]
        found += [partial(sends_in_parts, way, each) for each in (False, True)]
    return [*found, partial(sends_for_every_set, "fsdp", mixed=True, policy="muon")]


@needs_gloo
def test_two_ranks_send_what_is_predicted() -> None:
    run_on_ranks(2, cases(["ddp", "fsdp", "kept"]))


@needs_gloo
def test_four_ranks_send_what_is_predicted() -> None:
    """Some of them hold nothing of small tensors."""
    run_on_ranks(4, cases(["ddp", "fsdp", "hsdp"]))


# Laws

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 12))
def test_shards_are_the_chunks_of_torch_and_make_up_the_whole(
    shape: tuple[int, ...], shards: int
) -> None:
    held = Weight(shape, 0).held(shards).tolist()
    sizes = [each.numel() for each in torch.empty(shape).chunk(shards)]
    assert held == sizes + [0] * (shards - len(sizes))
    assert sum(held) == math.prod(shape)


@given(st.lists(st.integers(1, 9).map(float), max_size=30), st.integers(1, 8))
def test_matrices_are_shared_out_as_a_step_does(costs: list[float], ranks: int) -> None:
    assert share_out(costs, ranks) == _owners(costs, ranks)


@given(st.integers(2, 9), st.integers(1, 5), st.integers(2, 5))
def test_what_is_exchanged_comes_back(shards: int, layers: int, matrices: int) -> None:
    weights = [
        Weight((5, 3 + i), layer, layer, "whole")
        for layer in range(layers)
        for i in range(matrices)
    ]
    calls = step_traffic(weights, Spread(shards, exchanged=2), [range(layers)])
    there, back = (call.sent for call in calls if call.kind == "all-to-all")
    assert there.sum() == back.sum() == 2 * sum(weight.entries for weight in weights)


def test_reducing_once_sends_less_than_reducing_in_each_part() -> None:
    weights = [Weight((8, 8), layer, layer, "whole") for layer in range(4)]
    sets = [(0, 1, 2, 3), (3,), (3,)]
    for spread in (Spread(1, 4), Spread(4), Spread(2, 2)):
        once = step_traffic(weights, spread, sets)
        each = step_traffic(weights, spread, sets, reduce_each_part=True)
        assert sum(call.busiest for call in once) < sum(call.busiest for call in each)


def test_a_large_model_is_reduced_in_buckets_by_ddp() -> None:
    weights = [Weight((1000, 1000), 0), Weight((9000, 1000), 1)]
    calls = step_traffic(weights, Spread(1, 2), [(0, 1)])
    assert [call.busiest for call in calls] == [25 * 2**20, 10**7 * 4 - 25 * 2**20, 8]


def test_only_matrices_of_the_turn_move() -> None:
    weights = [Weight((4, 4), 0, needs="whole"), Weight((4, 4), 1, needs="whole"), Weight((4,), 1)]
    assert moving_matrices(weights, [(0,), (1,)], waiting={0}) == [weights[1]]
    assert moving_matrices(weights, [(0,)]) == [weights[0]]


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Weight((0, 3), 0), "shape must be a whole number of at least 1, got 0"),
        (lambda: Weight((3,), 0, needs="all"), "needs must be one of length, nothing, whole"),  # type: ignore[arg-type]
        (lambda: Spread(shards=0), "shards must be a whole number of at least 1, got 0"),
        (lambda: step_traffic([], Spread(), [(0,)]), "weights must not be empty"),
        (lambda: step_traffic([Weight((3,), 0)], Spread(), []), "sets must not be empty"),
        (lambda: step_traffic([Weight((3,), 0)], Spread(), [(1,)]), "sets must hold layer indices"),
    ],
)
def test_wrong_arguments_are_named(make_it: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_it()
