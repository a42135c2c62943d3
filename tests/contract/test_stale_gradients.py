"""Steps without a new gradient."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from dropmuon import DropMuon, samplers
from tests.docs.misuses import make_model


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_steps_without_a_new_gradient_change_nothing_and_warn_once(
    clear: bool, first: bool
) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, weight_decay=0.1, seed=2)
    if not first:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
        if clear:
            optimizer.zero_grad()
    parameters = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    active, flags = optimizer.active, [p.requires_grad for p in model.parameters()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.step()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert optimizer.active == active
    assert [p.requires_grad for p in model.parameters()] == flags
    torch.testing.assert_close(model.state_dict(), parameters, rtol=0, atol=0)
    after = optimizer.state_dict()
    assert after["dropmuon"] == state["dropmuon"]
    torch.testing.assert_close(after["state"], state["state"], rtol=0, atol=0)


def test_a_set_that_never_has_a_gradient_does_not_hold_up_training_for_ever() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), seed=2)
    model(torch.ones(1, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(5):
            optimizer.step()
    assert len(optimizer.active) == 3
    model(torch.ones(1, 4)).square().sum().backward()
    optimizer.step()
    assert len(optimizer.active) == 1


def test_old_gradients_of_layers_that_did_not_move_are_not_new() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), truncate=False, seed=2)
    moved = []
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).square().sum().backward()
        optimizer.step()
        before = copy.deepcopy(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        moved += [not torch.equal(before[name], x) for name, x in model.state_dict().items()]
    assert not any(moved)


def test_gradients_accumulated_over_batches_are_new() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1)
    for step in range(4):
        model(torch.ones(1, 4)).square().sum().backward()  # and no zero_grad
        optimizer.step()
        assert optimizer.state_dict()["dropmuon"]["steps"] == step + 1
