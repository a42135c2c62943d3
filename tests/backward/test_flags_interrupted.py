"""Flags after exceptions, and with copies, files and evaluation between steps."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import flags, moves_every_layer, started, take, values
from tests.models import PROBLEMS

# After an exception


def failing_forward(model, make_batch, loss):
    handle = model[2].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss(model, make_batch(0))
    handle.remove()


def failing_backward(model, make_batch, loss):
    with torch.enable_grad():
        value = loss(model, make_batch(0))
    value.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        value.backward()


@pytest.mark.parametrize("fail", [failing_forward, failing_backward])
@pytest.mark.parametrize("when", [0, 1, 4])
def test_after_a_failed_pass_training_continues_as_if_it_had_not_been(fail, when):
    runs = []
    for fails in (False, True):
        model, make_batch, loss = PROBLEMS["mlp"]()
        optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
        for step in range(15):
            if fails and step == when:
                fail(model, make_batch, loss)
                optimizer.zero_grad()
            take(optimizer, model, make_batch(step), loss)
        runs.append(values(model))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("when", [0, 3])
def test_a_step_that_raises_moves_nothing_and_training_continues(when):
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), error_if_nonfinite=True)
    for step in range(when):
        take(optimizer, model, make_batch(step), loss)
    active, before, shown = optimizer.active, values(model), flags(model)
    (loss(model, make_batch(0)) * float("nan")).backward()
    with pytest.raises(RuntimeError, match="not finite; nothing moved"):
        optimizer.step()
    optimizer.zero_grad()
    assert (optimizer.active, flags(model)) == (active, shown)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    assert moves_every_layer(optimizer, model, make_batch, loss)


def test_a_closure_that_raises_leaves_the_optimizer_usable():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert optimizer.active == (1,)
    optimizer.draws.sampler = samplers.Serial()
    assert moves_every_layer(optimizer, model, make_batch, loss)


# Copies, files, evaluation


def run(steps, between=lambda model, optimizer: (model, optimizer), **options):
    model, make_batch, loss = PROBLEMS["cnn"]()
    optimizer = DropMuon(model, lr=0.01, **{"sampler": samplers.Serial(), **options})
    for step in range(steps):
        take(optimizer, model, make_batch(step), loss)
        model, optimizer = between(model, optimizer)
    return values(model), optimizer


def evaluated(model, optimizer):
    _, make_batch, loss = PROBLEMS["cnn"]()
    model.eval()
    with torch.no_grad():
        loss(model, make_batch(99))
    with optimizer.full():
        loss(model, make_batch(98))
    model.train()
    return model, optimizer


def deep_copied(model, optimizer):
    return copy.deepcopy((model, optimizer))


def pickled(model, optimizer):
    return pickle.loads(pickle.dumps((model, optimizer)))


def saved_beside(model, optimizer):
    torch.save(model, io.BytesIO())
    torch.save(model.state_dict(), io.BytesIO())
    torch.save(optimizer.state_dict(), io.BytesIO())
    return model, optimizer


def printed(model, optimizer):
    assert str(optimizer)
    assert repr(optimizer)
    return model, optimizer


BETWEEN = [evaluated, deep_copied, pickled, saved_beside, printed]


@pytest.mark.parametrize("between", BETWEEN)
def test_what_happens_between_steps_leaves_no_trace(between):
    plain, optimizer = run(10)
    other, twin = run(10, between)
    assert optimizer.active == twin.active
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_copied_pair_trains_apart_from_the_original():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    before = values(model)
    for step in range(3):
        take(twin_optimizer, twin, make_batch(step), loss)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    assert not torch.equal(twin[2].weight, model[2].weight)
    shown = flags(model)
    del twin_optimizer
    gc.collect()
    assert all(flags(twin).values())
    assert flags(model) == shown
