"""Ranks with gradients of their own move the same layers, and draw the same sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from dropmuon import DropMuon, samplers
from tests.contract.process_group import process_group
from tests.ranks import Case, run_on_ranks
from tests.step.traffic import Traffic

pytestmark = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)

WIDTH = 6


class Routed(nn.Module):
    """Layers that all ranks have in common, and an expert that is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.ModuleDict({"shared": nn.Linear(WIDTH, WIDTH)})
        self.last = nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(1 + distributed.get_rank())
        self.middle["expert"] = nn.Linear(WIDTH, WIDTH)
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, is_used: bool) -> Tensor:
        x = self.middle["shared"](self.first(x))
        x = x + self.middle["expert"](x)
        x = x + self.expert(x) if is_used else x
        out: Tensor = self.last(x)
        return out

    @property
    def common(self) -> list[nn.Parameter]:
        modules = (self.first, self.middle["shared"], self.last)
        return [each for module in modules for each in module.parameters()]


def groups(model: Routed) -> list[dict[str, Any]]:
    """`middle` is a layer of both kinds of parameters; `expert` is one of its own."""
    names = ("first", "expert", "middle", "last")
    return [
        {"params": list(model.get_submodule(name).parameters()), "layer": name} for name in names
    ]


def averaged(model: Routed) -> None:
    """What a loop does that averages gradients by hand."""
    for each in model.common:
        if each.grad is not None:
            distributed.all_reduce(each.grad)
            each.grad /= distributed.get_world_size()


Event = Callable[[Routed, int], bool]
"""What happens to a rank's gradients at a step; return whether its own expert is used."""


def all_used(model: Routed, step: int) -> bool:
    return True


def used_on_one_rank(model: Routed, step: int) -> bool:
    return distributed.get_rank() == 0


def used_later_on_the_other(model: Routed, step: int) -> bool:
    return distributed.get_rank() == 0 or step > 5


def train(model: Routed, optimizer: DropMuon, steps: int, event: Event = all_used) -> list[object]:
    drawn: list[object] = []
    for step in range(steps):
        drawn.append(optimizer.active)
        seed = 10 * step + distributed.get_rank()
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))
        used = event(model, step)
        loss = model(x, used).square().mean()
        if loss.requires_grad:  # not if only an expert is active that this rank does not use
            loss.backward()
        averaged(model)
        optimizer.step()
        optimizer.zero_grad()
    return drawn


def check_together(model: Routed, optimizer: DropMuon, drawn: list[object]) -> None:
    """Ranks have drawn the same sets, would go on alike, and have the same common parameters."""
    seen: list[Any] = [None] * distributed.get_world_size()
    own = optimizer.state_dict()["dropmuon"]
    kept = {name: own[name] for name in ("steps", "active", "has_gradient", "skipped")}
    distributed.all_gather_object(seen, (drawn, kept))
    assert all(each == seen[0] for each in seen)
    for each in model.common:
        first = each.detach().clone()
        distributed.broadcast(first, 0)
        assert torch.equal(first, each)


def draws_alike(event: Event, **settings: Any) -> None:
    model = Routed()
    world = distributed.group.WORLD
    optimizer = DropMuon(groups(model), lr=0.05, process_group=world, **settings)
    drawn = train(model, optimizer, 12, event)
    assert len(set(drawn)) > 2
    check_together(model, optimizer, drawn)
    assert optimizer.state_dict()["dropmuon"]["has_gradient"] == [True] * 4


def skips_together(**settings: Any) -> None:
    """A NaN in one rank's own expert leaves the shared part of its layer still on all ranks."""
    model = Routed()
    world = distributed.group.WORLD
    optimizer = DropMuon(groups(model), lr=0.05, sampler="full", process_group=world, **settings)
    train(model, optimizer, 1)
    shared = [each.detach().clone() for each in model.middle["shared"].parameters()]
    model(torch.ones(2, WIDTH), True).square().mean().backward()
    averaged(model)
    if distributed.get_rank() == 1:
        model.middle["expert"].weight.grad.fill_(math.nan)
    if settings.get("error_if_nonfinite"):
        with pytest.raises(RuntimeError, match="the gradient of 'middle' is not finite"):
            optimizer.step()
        return
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.skipped == {"middle": 1}
    for before, now in zip(shared, model.middle["shared"].parameters(), strict=True):
        assert torch.equal(before, now)
    check_together(model, optimizer, train(model, optimizer, 3))


def counts_steps_that_one_rank_has_nothing_for() -> None:
    """A rank without any gradient stays in step; if nobody has any at first, nothing counts."""
    model, world = Routed(), distributed.group.WORLD
    expert = samplers.Arbitrary({(1,): 0.25, (0, 1): 0.25, (1, 2, 3): 0.5})
    optimizer = DropMuon(groups(model), lr=0.05, sampler=expert, process_group=world)
    with pytest.warns(UserWarning, match="found no gradient"):
        optimizer.step()
    assert optimizer.steps == 0
    drawn = train(model, optimizer, 1)
    for step in range(6):  # none of them averages anything
        drawn.append(optimizer.active)
        if distributed.get_rank() == step % 2:
            model.expert(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.steps == 7
    check_together(model, optimizer, drawn)


def costs_a_number_per_layer() -> None:
    for group, first, later in ((None, 0, 0), (distributed.group.WORLD, 2, 1)):
        model = Routed()
        optimizer = DropMuon(groups(model), lr=0.05, process_group=group)
        for step in range(4):
            model(torch.ones(2, WIDTH), True).square().mean().backward()
            averaged(model)
            with Traffic() as traffic:
                optimizer.step()
            optimizer.zero_grad()
            assert traffic.calls.total() == (later if step else first)
            assert traffic.bytes.total() == 4 * 4 * (later if step else first)


def tolerates_a_rank_with_fewer_parts() -> None:
    """The last batch of one rank has one part only: it does not wait, and draws like the others."""
    model, world = Routed(), distributed.group.WORLD
    sets = samplers.Arbitrary({(3,): 0.5, (0, 1, 2, 3): 0.5})
    optimizer = DropMuon(groups(model), lr=0.05, sampler=sets, parts=2, process_group=world)
    for step in range(4):
        parts = 1 if step == 3 and distributed.get_rank() else 2
        for _ in range(parts):
            (model(torch.ones(2, WIDTH), True).square().mean() / parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    seen: list[Any] = [None, None]
    distributed.all_gather_object(seen, (optimizer.steps, optimizer.active_sets))
    assert seen[0] == seen[1]
    assert optimizer.steps == 4


def warms_up_together() -> None:
    """A first step at a rate of zero, with gradients of zero on one rank, is one on all."""
    model, world = Routed(), distributed.group.WORLD
    optimizer = DropMuon(groups(model), lr=0.0, process_group=world)
    model(torch.ones(2, WIDTH), True).square().mean().backward()
    if distributed.get_rank():
        for each in model.parameters():
            each.grad.zero_()
    optimizer.step()
    assert optimizer.steps == 1


def measures_noise_over_the_group() -> None:
    """Noise is measured over the group that is given, of this rank alone too."""
    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    found = []
    for group in (alone[distributed.get_rank()], distributed.group.WORLD):
        optimizer = DropMuon(model, lr=0.0, parts=2, sampler="adaptive", process_group=group)
        for x in optimizer.split(torch.randn(8, WIDTH)):
            model(x).square().mean().backward()
        optimizer.step()
        seen: list[Any] = [None, None]
        distributed.all_gather_object(seen, optimizer.noise)
        found.append(seen)
        optimizer.release()
    assert found[0][0] != found[0][1]
    assert found[1][0] == found[1][1]


def test_two_ranks_decide_together() -> None:
    lonely = samplers.Arbitrary({(1,): 0.5, (0, 3): 0.25, (2,): 0.25})
    cases: list[Case] = [
        partial(draws_alike, used_on_one_rank, sampler=lonely),
        partial(draws_alike, used_on_one_rank, sampler=lonely, full_start=False),
        partial(draws_alike, used_later_on_the_other, sampler=samplers.Serial()),
        partial(draws_alike, used_on_one_rank, truncate="refresh", sampler=lonely),
        skips_together,
        partial(skips_together, truncate=False),
        partial(skips_together, error_if_nonfinite=True),
        counts_steps_that_one_rank_has_nothing_for,
        costs_a_number_per_layer,
        tolerates_a_rank_with_fewer_parts,
        warms_up_together,
        measures_noise_over_the_group,
    ]
    run_on_ranks(2, cases)


@pytest.mark.parametrize("wrong", [True, "gloo", 0])
def test_what_is_no_group_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"process_group must be .*WORLD, got "):
        DropMuon(nn.Linear(2, 2), process_group=wrong)


def test_a_copy_decides_alone() -> None:
    with process_group():
        model = nn.Linear(2, 2)
        optimizer = DropMuon(model, process_group=distributed.group.WORLD)
        state = optimizer.__getstate__()
    assert "_ranks" not in state
