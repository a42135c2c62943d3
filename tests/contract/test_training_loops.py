"""The habits of training loops: accumulation, clipping, scaling, schedules, closures."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import started, take, values
from tests.models import PROBLEMS


def test_accumulated_gradients_equal_one_large_batch():
    model, make_batch, loss = PROBLEMS["mlp"]()
    whole = copy.deepcopy(model)
    ours = DropMuon(model, lr=0.01, sampler=samplers.Serial(), orthogonalize="svd")
    theirs = DropMuon(whole, lr=0.01, sampler=samplers.Serial(), orthogonalize="svd")
    for step in range(8):
        parts = [make_batch(100 * step + n) for n in range(3)]
        for part in parts:
            active = ours.active
            (loss(model, part) / 3).backward()
            assert ours.active == active
        ours.step()
        ours.zero_grad()
        joined = tuple(torch.cat(items) for items in zip(*parts, strict=True))
        take(theirs, whole, joined, loss)
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)


def test_clipping_sees_the_active_gradients_only():
    model, make_batch, loss, optimizer = started("mlp", (1,), policy="euclidean")
    loss(model, make_batch(1)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == 2
    total = torch.stack([g.norm() for g in gradients]).norm()
    torch.testing.assert_close(total, torch.tensor(1e-3).double(), rtol=1e-3, atol=0)
    assert norm > total
    optimizer.step()
    optimizer.zero_grad()
    take(optimizer, model, make_batch(2), loss)


def test_a_grad_scaler_scales_skips_and_continues():
    model, make_batch, loss = PROBLEMS["mlp"](dtype=torch.float32)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = values(model)
    for step in range(20):
        bad = step in (0, 5)
        active, held = optimizer.active, values(model)
        value = loss(model, make_batch(step)) * (float("inf") if bad else 1.0)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if bad:
            assert optimizer.active == active
            assert all(torch.equal(held[name], value) for name, value in values(model).items())
    assert scaler.get_scale() == 2.0**8
    after = values(model)
    assert all(not torch.equal(before[name], after[name]) for name in after)
    assert all(torch.isfinite(value).all() for value in after.values())


def test_a_lambda_schedule_sets_the_length_of_each_step():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), policy="euclidean")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(8):
        active, before = optimizer.active, values(model)
        take(optimizer, model, make_batch(step), loss)
        schedule.step()
        for i in active:
            name = f"{optimizer.layers[i]}.weight"
            length = (model.state_dict()[name] - before[name]).norm()
            assert length == pytest.approx(0.1 / (1 + step), rel=1e-9)


def test_one_cycle_moves_rate_and_momentum_of_every_group():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, total_steps=12, base_momentum=0.4, max_momentum=0.8
    )
    seen = []
    for step in range(11):
        take(optimizer, model, make_batch(step), loss)
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        assert len({(g["lr"], g["momentum"]) for g in optimizer.param_groups}) == 1
        schedule.step()
    rates, momenta = zip(*seen, strict=True)
    assert max(rates) == pytest.approx(0.05, rel=0.1)
    assert momenta[0] == pytest.approx(0.8)
    assert min(momenta) == pytest.approx(0.4, rel=0.1)


def test_the_cycled_momentum_is_the_one_that_is_used():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.0, momentum=0.5, sampler="full")
    loss(model, make_batch(0)).backward()
    optimizer.step()
    old = model[0].weight.grad.clone()
    for group in optimizer.param_groups:
        group["momentum"] = 0.25
    optimizer.zero_grad()
    loss(model, make_batch(1)).backward()
    optimizer.step()
    expected = 0.25 * old + 0.75 * model[0].weight.grad
    torch.testing.assert_close(optimizer.state[model[0].weight]["momentum_buffer"], expected)


def test_maximize_is_minimising_the_negative_loss():
    down, make_batch, loss = PROBLEMS["mlp"]()
    up = copy.deepcopy(down)
    minimise = DropMuon(down, lr=0.01, sampler=samplers.Serial())
    maximise = DropMuon(up, lr=0.01, sampler=samplers.Serial(), maximize=True)
    for step in range(6):
        take(minimise, down, make_batch(step), loss)
        take(maximise, up, make_batch(step), lambda model, batch: -loss(model, batch))
    assert all(torch.equal(values(down)[name], value) for name, value in values(up).items())


def test_a_closure_is_one_pass_and_its_loss_is_returned():
    plain, make_batch, loss = PROBLEMS["mlp"]()
    closed = copy.deepcopy(plain)
    ours = DropMuon(closed, lr=0.01, sampler=samplers.Serial())
    theirs = DropMuon(plain, lr=0.01, sampler=samplers.Serial())
    for step in range(6):
        batch, calls = make_batch(step), []

        def closure(batch=batch, calls=calls):
            calls.append(1)
            ours.zero_grad()
            value = loss(closed, batch)
            value.backward()
            return value

        returned = ours.step(closure)
        assert len(calls) == 1
        assert returned.item() == take(theirs, plain, batch, loss)
    assert all(torch.equal(values(plain)[name], value) for name, value in values(closed).items())


def test_a_step_without_a_gradient_moves_nothing_and_says_so():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    before = values(model)
    with pytest.warns(UserWarning, match="found no gradient"):
        optimizer.step()
    loss(model, make_batch(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    moved = values(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert all(torch.equal(moved[name], value) for name, value in values(model).items())
    assert not torch.equal(before["2.weight"], moved["2.weight"])
