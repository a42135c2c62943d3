"""Hooks, closures and zero_grad as with torch's own optimizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dropmuon import DropMuon, samplers
from tests.contract.optimizer_info import assert_equal, descend, problem, snapshot

# Hooks


def test_step_hooks_run_around_the_step_in_order() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    seen: list[str] = []

    def note(word: str) -> Callable[..., None]:
        def hook(opt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert opt is optimizer
            seen.append(word)

        return hook

    handles = [
        register_optimizer_step_pre_hook(note("global before")),
        register_optimizer_step_post_hook(note("global after")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    try:
        loss().backward()
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["global before", "before", "after", "global after"]
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    assert len(seen) == 4


def test_a_pre_hook_sees_the_set_that_moves_and_a_post_hook_the_next() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    before, after = [], []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: before.append(opt.active))
    optimizer.register_step_post_hook(lambda opt, args, kwargs: after.append(opt.active))
    descend(optimizer, loss, 6)
    assert before[0] == (0, 1)
    assert before[1:] == after[:-1]


def test_a_pre_hook_can_give_the_step_its_closure() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)

    def closure() -> Tensor:
        value = loss()
        value.backward()
        return value

    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((opt, closure), kwargs))
    assert optimizer.step().item() == problem()[1]().item()


def test_state_dict_hooks_run_around_it() -> None:
    optimizer = DropMuon(problem()[0], lr=0.05)

    def before(opt: Optimizer) -> None:
        opt.param_groups[0]["lr"] = 0.7

    def after(opt: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(opt, DropMuon)
        return {**state, "note": opt.layers}

    optimizer.register_state_dict_pre_hook(before)
    optimizer.register_state_dict_post_hook(after)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.7
    assert state["note"] == optimizer.layers
    assert set(state) == {"state", "param_groups", "dropmuon", "note"}


def test_state_dict_hooks_can_be_prepended() -> None:
    optimizer = DropMuon(problem()[0])
    seen: list[int] = []
    optimizer.register_state_dict_pre_hook(lambda opt: seen.append(1))
    optimizer.register_state_dict_pre_hook(lambda opt: seen.append(0), prepend=True)
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append(3))
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append(2), prepend=True)
    optimizer.state_dict()
    assert seen == [0, 1, 2, 3]


def test_a_state_dict_post_hook_sees_all_that_is_saved() -> None:
    optimizer = DropMuon(problem()[0])
    seen: list[set[str]] = []
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append(set(state)))
    state = optimizer.state_dict()
    assert seen == [set(state)]


def test_load_hooks_run_around_loading_and_can_be_prepended() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    descend(optimizer, loss, 2)
    state = optimizer.state_dict()
    seen: list[str] = []

    def rate(value: float) -> Callable[..., None]:
        def hook(opt: DropMuon, state: dict[str, Any]) -> None:
            state["param_groups"][0]["lr"] = value
            seen.append(f"lr {value}")

        return hook

    optimizer.register_load_state_dict_pre_hook(rate(0.2))
    optimizer.register_load_state_dict_pre_hook(rate(0.1), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append("loaded"))
    optimizer.load_state_dict(state)
    assert seen == ["lr 0.1", "lr 0.2", "loaded"]
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_a_load_post_hook_finds_the_whole_state_loaded() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial(), seed=1)
    descend(optimizer, loss, 4)
    fresh = DropMuon(problem()[0], lr=0.05, sampler=samplers.Serial(), seed=2)
    seen = []

    def note(opt: Optimizer) -> None:
        assert isinstance(opt, DropMuon)
        seen.append((opt.active, opt.draws.seed))

    fresh.register_load_state_dict_post_hook(note)
    fresh.load_state_dict(optimizer.state_dict())
    assert seen == [(optimizer.active, 1)]


def test_a_load_pre_hook_can_make_a_state_fit() -> None:
    params, loss = problem()
    optimizer = DropMuon([("old.weight", params[0]), ("old2.bias", params[1])], lr=0.05)
    descend(optimizer, loss, 2)
    renamed, _ = problem()
    fresh = DropMuon([("new.weight", renamed[0]), ("new2.bias", renamed[1])], lr=0.05)

    def rename(opt: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(opt, DropMuon)
        return {**state, "dropmuon": {**state["dropmuon"], "layers": list(opt.layers)}}

    fresh.register_load_state_dict_pre_hook(rename)
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.active == optimizer.active


def test_steps_and_zero_grad_have_names_in_a_profile() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.profiler.profile() as profile:
            descend(optimizer, loss, 1)
        names = {event.name for event in profile.function_events}
    assert {"Optimizer.step#DropMuon.step", "Optimizer.zero_grad#DropMuon.zero_grad"} <= names


# zero_grad


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_inactive_layers_too(set_to_none: bool) -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    loss().backward()
    optimizer.step()
    assert len(optimizer.active) == 1
    optimizer.zero_grad(set_to_none=set_to_none)
    for param in params:
        assert param.grad is None if set_to_none else not param.grad.any()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_is_the_same_however_gradients_are_cleared(set_to_none: bool) -> None:
    ends = []
    for clear in (True, set_to_none):
        params, loss = problem()
        optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
        for _ in range(8):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=clear)
        ends.append(snapshot(params))
    assert_equal(*ends)


# Closures


def test_a_closure_is_called_once_with_gradients_enabled_and_its_loss_returned() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    calls: list[bool] = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    start = loss().item()
    with torch.no_grad():
        assert optimizer.step(closure).item() == start
    assert calls == [True]
    assert optimizer.step(closure) < start


def test_a_step_without_a_closure_returns_none() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    loss().backward()
    assert optimizer.step() is None


def test_a_step_leaves_no_trace_in_the_graph() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler="full")
    descend(optimizer, loss, 2)
    assert torch.is_grad_enabled()
    assert all(param.is_leaf and param.grad_fn is None for param in params)
    for state in optimizer.state.values():
        assert not any(v.requires_grad for v in state.values() if isinstance(v, Tensor))
