"""A NaN or infinite gradient holds its layer still, bit for bit, and a huge one moves it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dropmuon.optimizer
from dropmuon import DropMuon, rules, samplers
from dropmuon.model.policies import PolicyName
from dropmuon.step.moves import screen
from tests.models import batches, gradient, layers_of, mlp, train
from tests.step.small_steps import BAD, POLICIES, all_equal, make_model, same_bits, set_gradients


def everything(model: nn.Sequential, optimizer: DropMuon, layer: int) -> list[Tensor]:
    """All tensors of a layer: parameters, momentum, moments."""
    found = []
    for parameter in model[layer].parameters():
        found.append(parameter.detach())
        state = optimizer.state.get(parameter, {})
        found += [value for value in state.values() if isinstance(value, Tensor)]
    return [tensor.clone() for tensor in found]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("value", BAD)
def test_a_bad_entry_holds_its_layer_and_no_other(value: float, policy: PolicyName) -> None:
    for layer in range(4):
        model, clean = make_model(), make_model()
        settings: dict[str, Any] = {
            "lr": 0.1,
            "weight_decay": 0.1,
            "sampler": "full",
            "policy": policy,
        }
        optimizer, unharmed = DropMuon(model, **settings), DropMuon(clean, **settings)
        for step in range(2):
            set_gradients(model, step)
            set_gradients(clean, step)
            optimizer.step()
            unharmed.step()
        before = everything(model, optimizer, layer)
        set_gradients(model, 2)
        set_gradients(clean, 2)
        list(model[layer].parameters())[-1].grad.view(-1)[-1] = value
        optimizer.step()
        unharmed.step()
        assert all_equal(everything(model, optimizer, layer), before)
        for other in {0, 1, 2, 3} - {layer}:
            moved = everything(clean, unharmed, other)
            assert all_equal(everything(model, optimizer, other), moved)
        assert not all_equal(everything(clean, unharmed, layer), before)
        assert optimizer.skipped == {str(layer): 1}
        assert optimizer.state_dict()["dropmuon"]["skipped"] == {str(layer): 1}
        assert unharmed.skipped == {}


def test_a_layer_that_was_held_moves_on_as_if_the_step_had_not_been() -> None:
    model, clean = make_model(), make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full")
    unharmed = DropMuon(clean, lr=0.1, sampler="full")
    for step in range(6):
        set_gradients(model, step)
        set_gradients(clean, step)
        if step in {2, 3}:
            model[1].weight.grad[0, 0] = math.nan
            for parameter in clean[1].parameters():
                parameter.grad = None
        optimizer.step()
        unharmed.step()
    for layer in range(4):
        assert all_equal(everything(model, optimizer, layer), everything(clean, unharmed, layer))
    assert optimizer.skipped == {"1": 2}


def test_only_active_layers_are_screened() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), truncate=False, seed=1)
    set_gradients(model, 0)
    optimizer.step()
    (active,) = optimizer.active
    set_gradients(model, 1)
    for layer in {0, 1, 2, 3} - {active}:
        model[layer].weight.grad.fill_(math.nan)
    weight = model[active].get_parameter("weight")
    before = weight.detach().clone()
    optimizer.step()
    assert not torch.equal(weight, before)
    assert optimizer.skipped == {}


def test_the_step_counts_even_if_every_layer_was_held() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full")
    before = copy.deepcopy(model.state_dict())
    set_gradients(model, 0)
    for parameter in model.parameters():
        parameter.grad.fill_(math.inf)
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.skipped == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert optimizer.state_dict()["dropmuon"]["steps"] == 1


@pytest.mark.parametrize("value", BAD)
def test_a_layer_with_a_bad_first_gradient_starts_at_its_next_finite_one(value: float) -> None:
    model, late = make_model(), make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full")
    start = everything(model, optimizer, 1)
    for step in range(2):
        set_gradients(model, step)
        model[1].bias.grad[2] = value
        optimizer.step()
        assert all_equal([p.detach() for p in model[1].parameters()], start)
    set_gradients(model, 2)
    optimizer.step()
    for parameter in model[1].parameters():
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], gradient(parameter))
    fresh = DropMuon(late, lr=0.1, sampler="full")
    set_gradients(late, 2)
    fresh.step()
    assert all_equal(everything(model, optimizer, 1), everything(late, fresh, 1))


@pytest.mark.parametrize("first", [True, False])
def test_error_if_nonfinite_names_the_layers_and_moves_nothing(first: bool) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full", error_if_nonfinite=True)
    if not first:
        set_gradients(model, 0)
        optimizer.step()
    set_gradients(model, 1)
    model[1].weight.grad[0, 0] = math.nan
    model[3].bias.grad[0] = math.inf
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(RuntimeError, match=r"gradient of '1', '3' is not finite; nothing moved"):
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    after = optimizer.state_dict()
    assert after["dropmuon"] == state["dropmuon"]
    for index, saved in state["state"].items():
        assert torch.equal(saved["momentum_buffer"], after["state"][index]["momentum_buffer"])
        assert saved["updates"] == after["state"][index]["updates"]
    set_gradients(model, 2)
    optimizer.step()
    assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("dtype", "huge"),
    [
        (torch.float64, 1e300),
        (torch.float32, 1e30),
        (torch.float32, 3e38),
        (torch.bfloat16, 1e30),
        (torch.float16, 6e4),
    ],
)
def test_huge_finite_gradients_move_their_layers(
    dtype: torch.dtype, huge: float, policy: PolicyName
) -> None:
    if policy == "muon" and huge > torch.finfo(dtype).max ** 0.5:
        policy = "spectral"  # AdamW squares gradients, here as anywhere
    model = make_model().to(dtype)
    optimizer = DropMuon(model, lr=0.1, sampler="full", policy=policy)
    before = copy.deepcopy(model.state_dict())
    set_gradients(model, 0)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.sign() * huge
    for _ in range(2):
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = gradient(parameter) / 2
    assert optimizer.skipped == {}
    for name, value in model.state_dict().items():
        assert torch.isfinite(value).all(), name
        assert not torch.equal(before[name], value), name


@pytest.mark.parametrize("policy", ["spectral", "scion", "euclidean", "sign"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_huge_gradients_that_turn_around_leave_the_momentum_finite(
    dtype: torch.dtype, policy: PolicyName
) -> None:
    model = make_model().to(dtype)
    optimizer = DropMuon(model, lr=0.1, sampler="full", policy=policy)
    for sign in (1, -1):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.4 * sign * torch.finfo(dtype).max)
        optimizer.step()
    for state in optimizer.state.values():
        assert torch.isfinite(state["momentum_buffer"]).all()


# The screen of a whole step


CASES: dict[str, dict[str, Any]] = {
    "spectral": {},
    "nesterov and decay": {"nesterov": True, "weight_decay": 0.1},
    "sharp": {"step_rule": rules.Sharp()},
    "generalized": {"step_rule": rules.Generalized(1.0, [1.0, 2.0, 3.0])},
    "one by one": {"foreach": False},
    "ascent": {"maximize": True},
    "adamw": {"policy": lambda member: "adamw", "weight_decay": 0.1},
    "muon": {"policy": "muon"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", [0, 2])
def test_screening_on_the_device_is_screening_on_the_host(
    monkeypatch: pytest.MonkeyPatch, case: str, bad: float, layer: int
) -> None:
    start, make_batch, loss = mlp()
    data = batches(make_batch, 4)
    outcomes = []
    for on_host in (True, False):
        model = copy.deepcopy(start)
        optimizer = DropMuon(model, lr=0.05, momentum=0.6, sampler="full", **CASES[case])
        train(model, optimizer, loss, data[:1])  # a first step is screened on the host

        def forced(moves: Any, *, on_host: bool, agree: Any, choice: bool = on_host) -> Any:
            return screen(moves, on_host=choice, agree=agree)

        with monkeypatch.context() as patch:
            patch.setattr(dropmuon.optimizer, "screen", forced)
            for k in (1, 2, 3):
                loss(model, data[k]).backward()
                if k == 2:
                    layers_of(model)[layer][0].grad.view(-1)[1] = bad
                    before = _snapshot(optimizer, model)
                optimizer.step()
                optimizer.zero_grad()
                if k == 2:
                    _check_held(before, _snapshot(optimizer, model), layer)
        assert optimizer.skipped == {optimizer.layers[layer]: 1}
        outcomes.append(_snapshot(optimizer, model))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-16)


def _snapshot(optimizer: DropMuon, model: torch.nn.Module) -> list[list[Tensor]]:
    """Parameters and all tensors of their states, by layer."""
    return [
        [
            x.detach().clone()
            for p in layer
            for x in (p, *(v for v in optimizer.state[p].values() if isinstance(v, Tensor)))
        ]
        for layer in layers_of(model)
    ]


def _check_held(before: list[list[Tensor]], after: list[list[Tensor]], layer: int) -> None:
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        same = [same_bits(a, b) for a, b in zip(old, new, strict=True)]
        assert all(same) if i == layer else not any(same)


def test_a_first_gradient_that_is_not_finite_leaves_its_layer_to_start_later() -> None:
    model, make_batch, loss = mlp()
    optimizer = DropMuon(model, sampler="full")
    start = layers_of(model)[1][0].detach().clone()
    loss(model, make_batch(0)).backward()
    layers_of(model)[1][1].grad[0] = float("nan")
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(layers_of(model)[1][0].detach(), start)
    loss(model, make_batch(1)).backward()
    gradient = layers_of(model)[1][0].grad.clone()
    optimizer.step()
    momentum = optimizer.state[layers_of(model)[1][0]]["momentum_buffer"]
    assert torch.equal(momentum, gradient)


def test_an_error_on_not_finite_moves_nothing() -> None:
    model, make_batch, loss = mlp()
    optimizer = DropMuon(model, sampler="full", error_if_nonfinite=True)
    before = [p.detach().clone() for p in model.parameters()]
    loss(model, make_batch(0)).backward()
    layers_of(model)[2][0].grad[0, 0] = float("inf")
    with pytest.raises(RuntimeError, match="gradient of '4' is not finite; nothing moved"):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
