"""Which gradients a step follows: those that are there, as with every torch optimizer."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from dropmuon import DropMuon, samplers
from tests.docs.misuses import make_model


def backward(model: torch.nn.Module) -> None:
    model(torch.ones(1, 4)).square().sum().backward()


@pytest.mark.parametrize("first", [True, False])
def test_steps_without_a_gradient_change_nothing_and_warn_once(first: bool) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, weight_decay=0.1, seed=2)
    if not first:
        for _ in range(3):
            backward(model)
            optimizer.step()
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


@pytest.mark.parametrize("sampler", ["full", "uniform"])
def test_a_second_step_on_the_same_gradients_moves_again(sampler: samplers.SamplerName) -> None:
    """As if backward had written equal gradients a second time."""
    models = [make_model(), make_model()]
    optimizers = [
        DropMuon(model, lr=0.1, sampler=sampler, truncate=False, seed=2) for model in models
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        backward(model)
        kept = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        if model is models[1]:
            for parameter, gradient in zip(model.parameters(), kept, strict=True):
                parameter.grad = gradient
        before = copy.deepcopy(model.state_dict())
        optimizer.step()
        assert any(not torch.equal(before[name], x) for name, x in model.state_dict().items())
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=0, atol=0)


def test_old_gradients_of_inactive_layers_are_not_followed() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), seed=2)
    backward(model)
    optimizer.step()  # all layers have gradients, and keep them
    for _ in range(10):
        (layer,) = optimizer.active
        before = copy.deepcopy(model.state_dict())
        optimizer.step()
        moved = {
            name.split(".")[0]
            for name, x in model.state_dict().items()
            if not torch.equal(before[name], x)
        }
        assert moved == {optimizer.layers[layer]}


def test_a_run_with_steps_that_had_no_gradient_resumes_as_if_uninterrupted() -> None:
    """Three steps without a gradient, save, load: equal to the run that was not interrupted."""

    def advance(model: torch.nn.Module, optimizer: DropMuon, steps: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                optimizer.step()
        for _ in range(steps):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()

    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), seed=2)
    advance(model, optimizer, 3)
    other = make_model()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = DropMuon(other, lr=0.1, sampler=samplers.Serial(), seed=9)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((model, optimizer), (other, resumed)):
        advance(each, its, 6)
    assert resumed.active == optimizer.active
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_gradients_accumulated_over_batches_are_followed() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1)
    for step in range(4):
        model(torch.ones(1, 4)).square().sum().backward()  # and no zero_grad
        optimizer.step()
        assert optimizer.state_dict()["dropmuon"]["steps"] == step + 1
