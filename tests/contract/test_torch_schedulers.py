"""Schedulers, averaged models, gradient scaling and clipping beside DropMuon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import lr_scheduler, swa_utils

from dropmuon import DropMuon, samplers
from tests.contract.optimizer_info import descend, problem, snapshot

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 3),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [2, 5]),
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 1 / (step + 1)),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=6),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 8),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=12),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=3),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 10),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt,
        [lr_scheduler.ConstantLR(opt, 0.1, 4), lr_scheduler.ExponentialLR(opt, 0.9)],
        milestones=[4],
    ),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt, 0.1, 4), lr_scheduler.ExponentialLR(opt, 0.9)]
    ),
    "SWALR": lambda opt: swa_utils.SWALR(opt, 0.01, anneal_epochs=5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_rates_and_momentum_as_they_do_for_sgd(name: str) -> None:
    curves = []
    for make in (DropMuon, torch.optim.SGD):
        params, loss = problem()
        optimizer = make(params, lr=0.05, momentum=0.5)
        scheduler = SCHEDULERS[name](optimizer)
        curve = []
        for _ in range(10):
            curve.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
            descend(optimizer, loss, 1, [scheduler])
        curves.append(curve)
    assert curves[0] == curves[1]
    assert len(set(curves[0])) > 1


def test_a_plateau_lowers_the_rate() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.5)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
    for metric in (1.0, 1.0, 1.0):
        descend(optimizer, loss, 1)
        scheduler.step(metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_scheduled_rate_is_the_length_of_the_step() -> None:
    param = Parameter(torch.zeros(2, 2))
    optimizer = DropMuon([param], lr=0.8, policy="sign")
    scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    lengths = []
    for _ in range(4):
        before = param.detach().clone()
        param.grad = torch.ones(2, 2)
        optimizer.step()
        scheduler.step()
        lengths.append(float((before - param.detach()).max()))
    torch.testing.assert_close(lengths, [0.8, 0.4, 0.2, 0.1])


def test_averaged_models_average_what_was_trained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = [torch.randn(5, 3) for _ in range(6)]
    optimizer = DropMuon(model, lr=0.1)
    averaged = swa_utils.AveragedModel(model)
    scheduler = swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
    seen = []
    for x in data:

        def loss(x: Tensor = x) -> Tensor:
            return model(x).square().sum()

        descend(optimizer, loss, 1, [scheduler])
        averaged.update_parameters(model)
        seen.append(snapshot(model.parameters()))
    means = [torch.stack(values).mean(0) for values in zip(*seen, strict=True)]
    torch.testing.assert_close(snapshot(averaged.module.parameters()), means)
    swa_utils.update_bn(data, averaged)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    assert torch.isfinite(averaged(data[0])).all()


def test_a_step_that_a_grad_scaler_leaves_out_is_no_step() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(6):
        optimizer.zero_grad()
        active = optimizer.active
        before = snapshot(params)
        scaler.scale(loss()).backward()
        if step == 3:
            params[active[0]].grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        moved = [not torch.equal(p, b) for p, b in zip(params, before, strict=True)]
        assert moved == [step != 3 and i in active for i in range(2)]
        if step == 3:
            assert optimizer.active == active
    assert optimizer.skipped == {}


def test_clipped_gradients_are_gradients() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    start = loss().item()
    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    assert loss().item() < start
