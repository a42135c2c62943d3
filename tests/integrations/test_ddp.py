"""DDP sends what was active, on all ranks alike, and computes what it computes without that."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dropmuon import DropMuon, samplers
from dropmuon.integrations.ddp import reduce_active
from tests.contract.process_group import process_group
from tests.ranks import Case, run_on_ranks
from tests.step.traffic import Traffic

needs_gloo = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)

LAYERS, WIDTH, PARTS, STEPS = 6, 8, 4, 6
Sync = Literal["each", "last", "split"]


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def wrapped(model: nn.Module, **settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, find_unused_parameters=True, **settings)


def batch(step: int) -> Tensor:
    seed = 100 * step + distributed.get_rank()
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))


def train(net: Any, optimizer: DropMuon, sync: Sync = "each", ddp: Any = None) -> None:
    ddp = net if ddp is None else ddp
    for step in range(STEPS):
        if sync == "split":
            for x in optimizer.split(batch(step)):
                net(x).square().mean().backward()
        else:
            for n, x in enumerate(batch(step).chunk(optimizer.parts)):
                waits = sync == "last" and n < optimizer.parts - 1
                with ddp.no_sync() if waits else nullcontext():
                    (net(x).square().mean() / optimizer.parts).backward()
        optimizer.step()
        optimizer.zero_grad()


def check_same(ours: nn.Module, theirs: nn.Module) -> None:
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
        first = mine.detach().clone()
        distributed.broadcast(first, 0)
        assert torch.equal(first, mine)


def computes_the_same(sync: Sync = "each", engine: Any = (), **settings: Any) -> None:
    """With the hook, every bit of every parameter is what it is without."""
    ours, theirs = make(), make()
    for model, is_ours in ((ours, True), (theirs, False)):
        ddp = wrapped(model, **dict(engine))
        if is_ours:
            reduce_active(ddp)
        train(ddp, DropMuon(ddp, lr=0.05, seed=3, **settings), sync)
    check_same(ours, theirs)


def sends_active_layers_only(**settings: Any) -> None:
    """At every cutoff, and for sets with holes: their gradients, and a number per parameter."""
    ddp = wrapped(make(), **settings)
    reduce_active(ddp)
    optimizer = DropMuon(ddp, lr=0.05)
    sets = [range(cutoff, LAYERS) for cutoff in range(LAYERS)]
    for active in [*sets, [1, 4], [0, 2, 3, 5]]:
        optimizer.activate(active)
        with Traffic() as traffic:
            ddp(batch(0)).square().mean().backward()
        sent = 4 * len(active) * (WIDTH * WIDTH + WIDTH) + 4 * 2 * LAYERS
        assert traffic.bytes == {"allreduce_": sent}
        if not settings:
            assert traffic.calls.total() == 2  # one bucket, and what is unused
        optimizer.step()
        optimizer.zero_grad()


def sends_everything_without_it() -> None:
    ddp = wrapped(make())
    optimizer = DropMuon(ddp, lr=0.05)
    for cutoff in range(LAYERS):
        optimizer.activate(range(cutoff, LAYERS))
        with Traffic() as traffic:
            ddp(batch(0)).square().mean().backward()
        assert traffic.bytes.total() == 4 * LAYERS * (WIDTH * WIDTH + WIDTH) + 4 * 2 * LAYERS
        optimizer.step()
        optimizer.zero_grad()


def reduces_once_per_step_in_parts() -> None:
    """With parts all layers move; a reduction in the last part only sends each of them once."""
    layer, used = 4 * (WIDTH * WIDTH + WIDTH), 4 * 2 * LAYERS
    shares = samplers.Shares([0.25, 0.25, 0.5, 0.5, 1.0, 1.0])
    in_parts = 1 + 1 + 2 + 2 + 4 + 4
    planned: dict[Sync, int] = {
        "each": in_parts * layer + PARTS * used,
        "last": LAYERS * layer + used,
        "split": LAYERS * layer + used,
    }
    for sync, sent in planned.items():
        ddp = wrapped(make())
        reduce_active(ddp)
        optimizer = DropMuon(ddp, lr=0.05, parts=PARTS, sampler=shares)
        train(ddp, optimizer)  # its first step is full
        with Traffic() as traffic:
            train(ddp, optimizer, sync)
        assert traffic.bytes.total() == STEPS * sent
        assert traffic.calls.total() == STEPS * 2 * (PARTS if sync == "each" else 1)


def works_compiled() -> None:
    """Flags are noted outside of compiled code, in parts whose gradients wait too."""
    ours, theirs = make(), make()
    for model, is_compiled in ((ours, True), (theirs, False)):
        ddp = wrapped(model)
        reduce_active(ddp)
        net: Any = torch.compile(ddp, backend="eager") if is_compiled else ddp
        train(net, DropMuon(net, lr=0.05, parts=2), "last", ddp)
    check_same(ours, theirs)


class Routed(nn.Module):
    """Two experts, of which each rank uses the one that its examples ask for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, expert: int) -> Tensor:
        out: Tensor = self.head(self.experts[expert](self.first(x)))
        return out


def averages_what_one_rank_alone_has_used() -> None:
    """Every rank sends the same, and draws the same, whatever its data."""
    models = [Routed(), Routed()]
    for model in models:
        ddp = wrapped(model, bucket_cap_mb=0.0001)
        if model is models[0]:
            reduce_active(ddp)
        optimizer = DropMuon(ddp, lr=0.05, sampler=samplers.Nice(2), seed=1)
        drawn = []
        for step in range(12):
            drawn.append(optimizer.active)
            ddp(batch(step), distributed.get_rank() * (step > 0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(set(drawn)) > 3
        seen: list[Any] = [None, None]
        distributed.all_gather_object(seen, (drawn, optimizer.state_dict()["dropmuon"]))
        assert seen[0] == seen[1]
    check_same(*models)


@needs_gloo
def test_two_ranks_send_what_was_active() -> None:
    views = {"gradient_as_bucket_view": True}
    small = {"bucket_cap_mb": 0.0003}
    cases: list[Case] = [
        computes_the_same,
        partial(computes_the_same, sampler=samplers.Nice(2), full_start=False),
        partial(computes_the_same, sampler=samplers.Nice(2), engine=views),
        partial(computes_the_same, "last", parts=PARTS),
        partial(computes_the_same, "last", parts=PARTS, engine={**views, **small}),
        partial(computes_the_same, "each", parts=PARTS, engine=views),
        partial(computes_the_same, "split", parts=3, sampler=samplers.Nice(2), engine=small),
        sends_active_layers_only,
        partial(sends_active_layers_only, **small),
        sends_everything_without_it,
        reduces_once_per_step_in_parts,
        works_compiled,
        averages_what_one_rank_alone_has_used,
    ]
    run_on_ranks(2, cases)


@needs_gloo
def test_a_model_without_ddp_is_refused() -> None:
    with pytest.raises(ValueError, match="model must hold a DistributedDataParallel, got Seq"):
        reduce_active(make())


@needs_gloo
@pytest.mark.parametrize("settings", [{}, {"static_graph": True}])
def test_ddp_that_waits_for_every_gradient_is_refused(settings: Any) -> None:
    with process_group():
        ddp = nn.Sequential(DistributedDataParallel(make(), **settings))
        with pytest.raises(ValueError, match="find_unused_parameters=True and no static_graph"):
            reduce_active(ddp)
