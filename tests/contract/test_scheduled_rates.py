"""AdamW's learning rate beside that of norms, under each of torch's schedulers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from dropmuon import DropMuon, norms
from dropmuon.step.rates import rate_of

LR, RATIO = 0.05, 0.02
Make = Callable[[Any], Any]

MULTIPLY: dict[str, Make] = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 1 / (step + 1)),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda step: 0.9),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 3),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [2, 5]),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, 0.1, 4),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=6),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 12),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 12),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=1),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt,
        [lr_scheduler.LinearLR(opt, 0.1, total_iters=4), lr_scheduler.ExponentialLR(opt, 0.9)],
        milestones=[4],
    ),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt, 0.1, 4), lr_scheduler.ExponentialLR(opt, 0.9)]
    ),
}
"""Schedulers that multiply the rate that each group has: the proportion of two is kept."""

SET: dict[str, Make] = {
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=12),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=3),
    "SWALR": lambda opt: swa_utils.SWALR(opt, 0.01, anneal_epochs=5),
    "CosineAnnealingLR to a floor": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 8, 0.01),
    "CosineAnnealingWarmRestarts to a floor": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(
        opt, 4, eta_min=0.01
    ),
    "ReduceLROnPlateau to a floor": lambda opt: lr_scheduler.ReduceLROnPlateau(
        opt, factor=0.1, patience=1, min_lr=0.002
    ),
}
"""Schedulers with one number that all groups go to."""


def rates(optimizer: Any) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


LISTS: dict[str, Make] = {
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, rates(opt), total_steps=12),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(
        opt, [rate / 10 for rate in rates(opt)], rates(opt), step_size_up=3
    ),
    "SWALR": lambda opt: swa_utils.SWALR(
        opt,
        [rate / 5 for rate in rates(opt)],  # type: ignore[arg-type]
        anneal_epochs=5,
    ),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(
        opt, factor=0.1, patience=1, min_lr=[rate / 25 for rate in rates(opt)]
    ),
}
"""The same with a number for each group."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))


def follow(optimizer: Any, model: nn.Module, make: Make, steps: int = 11) -> list[list[float]]:
    """Train under a scheduler; return the rate of every group in each step."""
    scheduler, curve = make(optimizer), []
    for _ in range(steps):
        curve.append([rate_of(group) for group in optimizer.param_groups])
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return curve


def proportions(optimizer: Any, curve: Iterable[list[float]]) -> list[float]:
    """Return the rates of AdamW's groups over that of norms, in all steps."""
    is_adamw = [isinstance(group["norm"], norms.AdamW) for group in optimizer.param_groups]
    assert {True, False} == {*is_adamw}
    found = []
    for row in curve:
        (norm,) = {rate for rate, adamw in zip(row, is_adamw, strict=True) if not adamw}
        found += [rate / norm for rate, adamw in zip(row, is_adamw, strict=True) if adamw]
    return found


def test_the_tables_have_each_of_torch_s_schedulers() -> None:
    public = {
        name
        for name in [*lr_scheduler.__all__, "SWALR"]
        if name not in ("LRScheduler",) and not name.startswith("_")
    }
    assert public == {name.split()[0] for name in (*MULTIPLY, *SET)}


@pytest.mark.parametrize("make", [*MULTIPLY.values(), *SET.values()], ids=[*MULTIPLY, *SET])
def test_a_ratio_is_kept_under_every_scheduler(make: Make) -> None:
    model = network()
    optimizer = DropMuon(model, LR, policy="muon", adamw_ratio=RATIO)
    curve = follow(optimizer, model, make)
    found = proportions(optimizer, curve)
    assert found == pytest.approx([RATIO] * len(found))
    other = network()
    plain = follow(torch.optim.SGD(other.parameters(), LR), other, make)
    assert [max(row) for row in curve] == [max(row) for row in plain]
    assert len({max(row) for row in curve}) > 1


@pytest.mark.parametrize("make", [*MULTIPLY.values(), *LISTS.values()], ids=[*MULTIPLY, *LISTS])
def test_a_rate_of_its_own_is_kept_by_what_multiplies_and_by_lists(make: Make) -> None:
    model = network()
    optimizer = DropMuon(model, LR, policy="muon", adamw_lr=RATIO * LR)
    curve = follow(optimizer, model, make)
    found = proportions(optimizer, curve)
    assert found == pytest.approx([RATIO] * len(found))
    assert len({max(row) for row in curve}) > 1


@pytest.mark.parametrize(
    "name", ["OneCycleLR", "CyclicLR", "SWALR", "CosineAnnealingLR to a floor"]
)
def test_a_rate_of_its_own_that_is_overwritten_causes_a_warning(name: str) -> None:
    model = network()
    optimizer = DropMuon(model, LR, policy="muon", adamw_lr=RATIO * LR)
    with pytest.warns(UserWarning, match=r"AdamW was raised to that of the norms.*adamw_ratio"):
        follow(optimizer, model, SET[name])


@pytest.mark.parametrize(
    "options", [{"adamw_lr": LR}, {"adamw_ratio": 1.0}, {"policy": "spectral"}], ids=str
)
def test_rates_that_are_equal_from_the_start_cause_none(
    options: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    model = network()
    follow(DropMuon(model, LR, **{"policy": "muon", **options}), model, SET["OneCycleLR"])
    assert not recwarn.list


def test_warming_up_from_zero_and_ending_there_cause_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    model = network()
    optimizer = DropMuon(model, LR, policy="muon")
    follow(optimizer, model, lambda opt: lr_scheduler.LambdaLR(opt, lambda n: (n % 5) / 5))
    assert not recwarn.list


def test_a_ratio_moves_parameters_as_far_as_the_rate_that_it_makes() -> None:
    ends = []
    ways: list[dict[str, Any]] = [{"adamw_ratio": 0.5}, {"adamw_lr": 0.25}]
    for options in ways:
        model = network()
        optimizer = DropMuon(model, 0.5, policy="muon", weight_decay=0.1, **options)
        follow(optimizer, model, MULTIPLY["StepLR"])
        ends.append(model.state_dict())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)


def test_a_ratio_moves_as_adamw_of_torch_under_one_cycle() -> None:
    model, other = network(), network()
    everything: dict[str, Any] = {
        "sampler": "full",
        "policy": lambda member: norms.AdamW((0.9, 0.95)),
    }
    ours = DropMuon(model, LR, adamw_ratio=RATIO, **everything)
    theirs = torch.optim.AdamW(other.parameters(), 1.0, (0.9, 0.95), weight_decay=0.0)
    once: dict[str, Any] = {"total_steps": 12, "cycle_momentum": False}
    follow(ours, model, lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, **once))
    follow(theirs, other, lambda opt: lr_scheduler.OneCycleLR(opt, 0.2 * RATIO, **once))
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_a_ratio_is_resumed_and_a_state_without_one_stays_as_it_was() -> None:
    def made(**options: Any) -> tuple[nn.Module, DropMuon]:
        model = network()
        return model, DropMuon(model, LR, policy="muon", **options)

    def adamw_rates(optimizer: DropMuon) -> set[float]:
        return {rate_of(g) for g in optimizer.param_groups if isinstance(g["norm"], norms.AdamW)}

    with_ratio = made(adamw_ratio=RATIO)[1].state_dict()
    without = made(adamw_lr=0.004)[1].state_dict()
    _, optimizer = made(adamw_ratio=0.5)
    optimizer.load_state_dict(copy.deepcopy(with_ratio))
    assert adamw_rates(optimizer) == {LR * RATIO}
    optimizer.load_state_dict(copy.deepcopy(without))
    assert adamw_rates(optimizer) == {0.004}


def test_a_group_with_a_rate_of_its_own_has_no_ratio() -> None:
    model = network()
    groups: list[dict[str, Any]] = [
        {"params": model[0].weight, "norm": "adamw", "lr": 0.001},
        {"params": model[1].weight, "norm": "adamw"},
        {"params": model[2].weight, "norm": "sign", "lr_ratio": 0.1},
    ]
    optimizer = DropMuon(groups, LR, adamw_ratio=RATIO)
    found = [rate_of(group) for group in optimizer.param_groups]
    assert found == pytest.approx([0.001, LR * RATIO, LR * 0.1])


def test_groups_of_one_rate_and_different_ratios_move_differently() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    groups: list[dict[str, Any]] = [
        {"params": parameters[0]},
        {"params": parameters[1], "lr_ratio": 0.5},
        {"params": parameters[2], "lr_ratio": 0.0},
    ]
    optimizer = DropMuon(groups, 0.5, policy="sign", sampler="full")
    for parameter in parameters:
        parameter.grad = torch.ones(2, 2)
    optimizer.step()
    assert [parameter.detach().unique().item() for parameter in parameters] == [-0.5, -0.25, 0.0]


def test_a_layer_that_is_added_with_a_rate_keeps_the_ratio() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = DropMuon(model, LR, policy="muon", adamw_ratio=RATIO)
    model[0].requires_grad_(True)
    count = len(optimizer.param_groups)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    found = {type(g["norm"]): rate_of(g) for g in optimizer.param_groups[count:]}
    assert found == {norms.Spectral: 0.01, norms.AdamW: pytest.approx(0.01 * RATIO)}


def test_one_rate_for_all_groups_may_be_set_by_hand() -> None:
    """As loops do that compute the rate of a step themselves."""
    model = network()
    optimizer = DropMuon(model, LR, policy="muon", adamw_ratio=RATIO, sampler="full")
    model(torch.ones(2, 3)).square().sum().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    bias = model[0].bias.detach().clone()
    optimizer.step()
    moved = (model[0].bias - bias).abs().max()
    assert moved.item() == pytest.approx(0.01 * RATIO, rel=1e-3)


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_rate_that_is_no_number_is_refused_and_nothing_moves(rate: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = DropMuon(model, sampler="full")
    model(torch.ones(2, 3)).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.param_groups[-1]["lr"] = rate
    with pytest.raises(ValueError, match=rf"lr of group .+ is {rate}, and nothing moved"):
        optimizer.step()
    assert all(map(torch.equal, model.parameters(), before))
