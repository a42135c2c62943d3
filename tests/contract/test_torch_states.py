"""States and copies: saved, loaded, pickled and copied as with torch's own optimizers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from dropmuon import DropMuon, samplers
from tests.contract.optimizer_info import (
    INFO,
    OptimizerInput,
    assert_equal,
    assert_same_state,
    build,
    configurations,
    descend,
    problem,
    snapshot,
)

# States


@configurations
def test_equal_runs_have_equal_states(given: OptimizerInput) -> None:
    states = []
    for _ in range(2):
        params, loss = problem()
        optimizer = build(params, given)
        descend(optimizer, loss, 5)
        states.append(optimizer.state_dict())
    assert_same_state(*states)


@configurations
def test_a_state_loaded_into_a_fresh_optimizer_continues_alike(given: OptimizerInput) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 7)
    state = copy.deepcopy(optimizer.state_dict())
    twins, twin_loss = problem()
    with torch.no_grad():
        for ours, theirs in zip(twins, params, strict=True):
            ours.copy_(theirs)
    fresh = build(twins, given)
    fresh.load_state_dict(copy.deepcopy(state))
    for _ in range(7):
        assert fresh.active == optimizer.active
        descend(optimizer, loss, 1)
        descend(fresh, twin_loss, 1)
        assert_equal(snapshot(twins), snapshot(params))


@configurations
def test_states_of_before_a_setting_existed_can_be_loaded(given: OptimizerInput) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 3)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        for flag in INFO.not_og_supported_flags:
            del group[flag]
    optimizer.load_state_dict(state)
    for flag in INFO.not_og_supported_flags:
        assert optimizer.param_groups[0][flag] == optimizer.defaults[flag]
    descend(optimizer, loss, 3)


@pytest.mark.parametrize("named_first", [True, False])
def test_named_and_unnamed_states_fit_each_other_where_layers_do(named_first: bool) -> None:
    def make(named: bool) -> tuple[DropMuon, list[Parameter], Callable[[], Tensor]]:
        params, loss = problem()
        groups = [
            {"params": [(f"name{i}", p)] if named else [p], "layer": i}
            for i, p in enumerate(params)
        ]
        return DropMuon(groups, lr=0.05), params, loss

    one, params, loss = make(named_first)
    descend(one, loss, 3)
    other, others, other_loss = make(not named_first)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    with torch.no_grad():
        for ours, theirs in zip(others, params, strict=True):
            ours.copy_(theirs)
    descend(one, loss, 3)
    descend(other, other_loss, 3)
    assert_equal(snapshot(others), snapshot(params))


def test_names_are_kept_in_groups_and_states() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    for params in (model, list(model.named_parameters())):
        optimizer = DropMuon(params)
        names = [name for group in optimizer.param_groups for name in group["param_names"]]
        assert sorted(names) == ["0.bias", "0.weight", "1.bias", "1.weight"]
        saved = [n for g in optimizer.state_dict()["param_groups"] for n in g["param_names"]]
        assert saved == names
        assert optimizer.layers == ("0", "1")


@configurations
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_saved_state_is_read_back_equal(given: OptimizerInput, weights_only: bool) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 5)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert_same_state(torch.load(file, weights_only=weights_only), optimizer.state_dict())


@pytest.mark.parametrize("policy", ["spectral", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_loading_brings_the_state_to_the_parameters_type(policy: str, dtype: torch.dtype) -> None:
    def make(dtype: torch.dtype) -> tuple[DropMuon, Callable[[], Tensor], list[Parameter]]:
        params, loss = problem(dtype=dtype)
        return DropMuon([{"params": params, "norm": policy}], lr=0.01), loss, params

    optimizer, loss, params = make(torch.float32)
    descend(optimizer, loss, 3)
    other, other_loss, others = make(dtype)
    other.load_state_dict(optimizer.state_dict())
    kept = torch.promote_types(dtype, torch.float32) if policy == "adamw" else dtype
    for ours, theirs in zip(others, params, strict=True):
        assert ours.dtype == dtype
        for key, value in other.state[ours].items():
            old = optimizer.state[theirs][key]
            if isinstance(value, Tensor) and value.ndim:
                assert value.dtype == kept
                assert_equal(value, old.to(kept))
            else:
                assert value == old
    descend(other, other_loss, 3)
    assert all(torch.isfinite(param).all() for param in others)


@configurations
def test_state_exists_for_every_parameter_after_the_first_step(given: OptimizerInput) -> None:
    params, loss = problem()
    optimizer = build(params, given, full_start=True)
    descend(optimizer, loss, 1)
    assert all(optimizer.state[param] for param in params)


# Copies


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda whole: pickle.loads(pickle.dumps(whole)),
}


@configurations
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_complete_and_trains_alike(given: OptimizerInput, how: str) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 3)
    twin = COPIES[how](optimizer)

    def public(opt: DropMuon) -> set[str]:
        return {name for name in vars(opt) if not name.startswith("_")}

    assert public(twin) == public(optimizer)
    assert_same_state(twin.state_dict(), optimizer.state_dict())
    assert str(twin) == str(optimizer)
    twins = [param for group in twin.param_groups for param in group["params"]]
    assert not {id(param) for param in twins} & {id(param) for param in params}
    for step in range(6):
        assert twin.active == optimizer.active
        flags = [param.requires_grad for param in params]
        assert [param.requires_grad for param in twins] == flags
        for ours, theirs in zip(twins, params, strict=True):
            gradient = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(step))
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        twin.step()
        assert_equal(snapshot(twins), snapshot(params))


@pytest.mark.parametrize("how", COPIES)
def test_a_model_copied_with_its_optimizer_stays_with_it(how: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    descend(optimizer, lambda: model(torch.ones(2, 3)).square().sum(), 2)
    other, twin = COPIES[how]((model, optimizer))
    flags = [param.requires_grad for param in model.parameters()]
    before = snapshot(other.parameters())
    descend(twin, lambda: other(torch.ones(2, 3)).square().sum(), 8)
    assert not any(map(torch.equal, snapshot(other.parameters()), before))
    assert [layer.weight.requires_grad for layer in other] == [i in twin.active for i in range(2)]
    assert [param.requires_grad for param in model.parameters()] == flags


def test_a_model_copied_inside_full_is_trainable_as_a_whole() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    descend(optimizer, lambda: model(torch.ones(2, 3)).square().sum(), 2)
    with optimizer.full():
        other = copy.deepcopy(model)
    assert DropMuon(other).layers == ("0", "1")
