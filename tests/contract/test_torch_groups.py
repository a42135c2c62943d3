"""Parameter groups as torch has them: learning rates and other settings, each group its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler

from dropmuon import DropMuon, rules
from tests.contract.optimizer_info import (
    OptimizerInput,
    assert_equal,
    assert_same_state,
    build,
    configurations,
    descend,
    implementation,
    problem,
    snapshot,
)


def test_a_group_without_a_rate_has_the_default() -> None:
    first, second, third = (Parameter(torch.ones(2, 2)) for _ in range(3))
    groups: list[dict[str, Any]] = [
        {"params": [first], "lr": 0.5},
        {"params": [second]},
        {"params": [third], "lr": 0.0},
    ]
    optimizer = DropMuon(groups, lr=0.25, policy="sign", sampler="full")
    for param in (first, second, third):
        param.grad = torch.ones(2, 2)
    optimizer.step()
    assert_equal(first.detach(), torch.full((2, 2), 0.5))
    assert_equal(second.detach(), torch.full((2, 2), 0.75))
    assert_equal(third.detach(), torch.ones(2, 2))


@implementation
def test_weight_decay_is_that_of_the_group(foreach: bool) -> None:
    decayed, plain = Parameter(torch.ones(2, 2)), Parameter(torch.ones(2, 2))
    groups: list[dict[str, Any]] = [{"params": [decayed], "weight_decay": 0.5}, {"params": [plain]}]
    optimizer = DropMuon(groups, lr=0.5, foreach=foreach)
    for param in (decayed, plain):
        param.grad = torch.zeros(2, 2)
    optimizer.step()
    assert_equal(decayed.detach(), torch.full((2, 2), 0.75))
    assert_equal(plain.detach(), torch.ones(2, 2))


def test_every_setting_of_a_group_is_its_own() -> None:
    params = [Parameter(torch.zeros(2)) for _ in range(5)]
    own: list[dict[str, Any]] = [
        {},
        {"momentum": 0.0},
        {"maximize": True},
        {"momentum_start": "zero"},
        {"nesterov": True},
    ]
    groups = [{"params": [p], **setting} for p, setting in zip(params, own, strict=True)]
    optimizer = DropMuon(
        groups, lr=1.0, momentum=0.5, sampler="full", policy="euclidean", step_rule=rules.Sharp()
    )
    for gradient in (1.0, 3.0):
        for param in params:
            param.grad = torch.full((2,), gradient)
        optimizer.step()
    wanted = [-1.0 - 2.0, -1.0 - 3.0, 1.0 + 2.0, -0.5 - 1.75, -1.0 - 2.5]
    torch.testing.assert_close([p.detach()[0].item() for p in params], wanted)


@configurations
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_rate_as_a_tensor_is_a_rate(given: OptimizerInput, shape: tuple[int, ...]) -> None:
    ends = []
    for make in (float, lambda rate: torch.full(shape, rate, dtype=torch.float64)):
        params, loss = problem()
        optimizer = build(params, given, lr=make(0.03))
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
        descend(optimizer, loss, 5, [schedule])
        ends.append(snapshot(params))
    torch.testing.assert_close(ends[0], ends[1])


def test_changed_defaults_hold_for_groups_added_later() -> None:
    optimizer = DropMuon([Parameter(torch.ones(2, 2))], lr=0.1)
    optimizer.defaults.update(lr=0.7, foreach=False, weight_decay=0.2)
    optimizer.add_param_group({"params": [Parameter(torch.ones(3, 2))]})
    first, second = optimizer.param_groups
    assert (first["lr"], first["foreach"], first["weight_decay"]) == (0.1, True, 0.0)
    assert (second["lr"], second["foreach"], second["weight_decay"]) == (0.7, False, 0.2)


def test_an_added_group_joins_the_training() -> None:
    params, loss = problem()
    extra = Parameter(torch.ones(10))
    optimizer = DropMuon(params, lr=0.05)
    descend(optimizer, loss, 3)
    optimizer.add_param_group({"params": [extra], "lr": 0.01})
    assert optimizer.active == (0, 1, 2)
    before = extra.detach().clone()
    descend(optimizer, lambda: loss() + extra.square().sum(), 3)
    assert not torch.equal(extra, before)
    assert all(param.requires_grad or i not in optimizer.active for i, param in enumerate(params))


@pytest.mark.parametrize("with_groups", [True, False])
def test_a_parameter_may_not_be_in_two_groups(with_groups: bool) -> None:
    param = Parameter(torch.ones(2, 2))
    if with_groups:
        with pytest.raises(ValueError, match="some parameters appear in more than one"):
            DropMuon([{"params": [param]}, {"params": [param]}])
    else:
        with pytest.warns(UserWarning, match="a parameter group with duplicate parameters"):
            DropMuon([param, param])


def test_a_group_that_cannot_be_added_leaves_the_optimizer_as_it_was() -> None:
    params, loss = problem()
    twins, twin_loss = problem()
    optimizer, untouched = DropMuon(params, lr=0.05), DropMuon(twins, lr=0.05)
    for bad in (
        {"params": [params[0]]},
        {"params": [Parameter(torch.ones(2))], "lr": -1.0},
        {"params": [Parameter(torch.ones(2))], "norm": "spectrel"},
        {"params": [torch.zeros(2, dtype=torch.long)]},
    ):
        with pytest.raises(ValueError, match=r"more than one|lr must|spectral|only floats"):
            optimizer.add_param_group(bad)
    descend(optimizer, loss, 5)
    descend(untouched, twin_loss, 5)
    assert_same_state(optimizer.state_dict(), untouched.state_dict())
    assert_equal(snapshot(params), snapshot(twins))
