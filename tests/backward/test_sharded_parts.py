"""Parts and accumulated gradients under FSDP2 and TP, with and without a reduction per part."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F

from dropmuon import DropMuon, samplers
from tests.contract.process_group import process_group
from tests.ranks import Case, run_on_ranks
from tests.step.sharded_runs import Way, batch, check_equal, fsdp, make, tp
from tests.step.traffic import Traffic

pytestmark = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)

PARTS, STEPS = 4, 10
Sync = Literal["each", "last", "last, and gathered in between"]


def train(
    model: nn.Module, optimizer: DropMuon, share: tuple[int, int] = (1, 0), sync: Sync = "each"
) -> list[object]:
    """Each rank has its share of the examples of every part, as a loop that accumulates."""
    drawn: list[object] = []
    ranks, rank = share
    for step in range(STEPS):
        for n, (x, y) in enumerate(zip(*(each.chunk(PARTS) for each in batch(step)), strict=True)):
            drawn.append(optimizer.active)
            if isinstance(model, FSDPModule) and sync != "each":
                model.set_requires_gradient_sync(n == PARTS - 1)
                if sync != "last":
                    model.set_reshard_after_backward(n == PARTS - 1)
            loss = F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
            (loss / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return drawn


def trains_alike(way: Way, sync: Sync, **settings: Any) -> None:
    ours, theirs = make(), make()
    share = way(ours)
    drawn = train(ours, DropMuon(ours, lr=0.05, **settings), share, sync)
    assert drawn == train(theirs, DropMuon(theirs, lr=0.05, **settings))
    assert len(set(drawn)) > 2
    check_equal(ours, theirs)


def splits_alike() -> None:
    """`split` weighs parts: each of two ranks cuts its half of the batch into 1, 1 and 2."""
    ours, theirs = make(), make()
    ranks, rank = fsdp(ours)
    sizes, shares = [1, 1, 2], samplers.Shares([1 / 3] * 4 + [1] * 5)
    sharded, plain = (DropMuon(m, lr=0.05, parts=3, sampler=shares) for m in (ours, theirs))
    for step in range(6):
        halves = [each.chunk(ranks) for each in batch(step)]
        for x, y in sharded.split(*(half[rank] for half in halves)):
            F.cross_entropy(ours(x), y).backward()
        plain.weigh(sizes)
        parts = [
            [torch.cat(n) for n in zip(*(h.split(sizes) for h in both), strict=True)]
            for both in halves
        ]
        for x, y, size in zip(*parts, sizes, strict=True):
            (F.cross_entropy(theirs(x), y) * size / sum(sizes)).backward()
        for optimizer in (sharded, plain):
            optimizer.step()
            optimizer.zero_grad()
    check_equal(ours, theirs)


def reduces_once_per_step() -> None:
    """With a reduction in the last part only, every group is reduced once, frozen ones too."""
    model = make()
    share = fsdp(model)
    optimizer = DropMuon(model, lr=0.05, parts=PARTS)
    counts: dict[Sync, int] = {}
    for sync in ("each", "last"):
        with Traffic() as traffic:
            train(model, optimizer, share, sync)
        counts[sync] = sum(n for name, n in traffic.calls.items() if "reduce_scatter" in name)
    groups = len(model.blocks) + 1
    assert counts["last"] == STEPS * groups
    assert counts["last"] < counts["each"] < STEPS * PARTS * groups  # those that stop are left out


def test_two_ranks_accumulate_as_one_process_does() -> None:
    syncs: tuple[Sync, ...] = ("each", "last", "last, and gathered in between")
    cases: list[Case] = [partial(trains_alike, fsdp, sync, parts=PARTS) for sync in syncs]
    cases += [partial(trains_alike, fsdp, sync) for sync in syncs]
    cases += [partial(trains_alike, tp, "each", parts=PARTS, policy="muon")]
    run_on_ranks(2, [*cases, splits_alike, reduces_once_per_step])


def test_parts_of_sharded_parameters_need_their_model() -> None:
    model = make()
    with process_group():
        fully_shard(model)
        with pytest.raises(ValueError, match=r"parts=2 needs the model where parameters"):
            DropMuon(model.named_parameters(), lr=0.05, parts=2)
        optimizer = DropMuon(model.parameters(), lr=0.05, parts=2, model=model)
        for x, y in zip(*(each.chunk(2) for each in batch(0)), strict=True):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert optimizer.steps == 1


def test_the_noise_of_sharded_parameters_is_not_measured() -> None:
    model = make()
    with process_group():
        fully_shard(model)
        with pytest.raises(ValueError, match=r"sampler='adaptive' measures gradients where they"):
            DropMuon(model, parts=8, sampler="adaptive")
