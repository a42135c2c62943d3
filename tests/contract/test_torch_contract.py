"""DropMuon under the generic checks that PyTorch has for its own optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from dropmuon import DropMuon
from tests.contract.optimizer_info import (
    CONFIGURATIONS,
    ERRORS,
    INFO,
    SAID_OTHERWISE,
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInput,
    assert_equal,
    assert_same_state,
    build,
    configurations,
    contiguity,
    descend,
    implementation,
    problem,
    snapshot,
)

# The table


def test_the_table_leaves_implementations_to_the_tests() -> None:
    for given in CONFIGURATIONS:
        assert not {"foreach", "fused", "differentiable"} & set(given.kwargs)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.optimizer_error_input.desc)
def test_what_cannot_work_is_refused(error: ErrorOptimizerInput) -> None:
    given = error.optimizer_error_input
    params = problem()[0] if given.params is None else given.params
    regex = SAID_OTHERWISE.get(given.desc, error.error_regex)
    if error.error_on is OptimizerErrorEnum.STEP_ERROR:
        optimizer = DropMuon(params, **given.kwargs)
        with pytest.raises(error.error_type, match=regex):
            optimizer.step()
    elif issubclass(error.error_type, Warning):
        with pytest.warns(error.error_type, match=regex):
            DropMuon(params, **given.kwargs)
    else:
        with pytest.raises(error.error_type, match=regex):
            DropMuon(params, **given.kwargs)


@configurations
def test_it_can_be_printed(given: OptimizerInput) -> None:
    optimizer = build(problem()[0], given)
    assert "DropMuon" in str(optimizer)
    assert repr(optimizer).startswith("DropMuon")


# The right direction


@configurations
@contiguity
@implementation
def test_it_goes_the_right_direction(
    given: OptimizerInput, contiguous: bool, foreach: bool
) -> None:
    params, loss = problem(contiguous)
    optimizer = build(params, given, foreach=foreach)
    start = loss().item()
    descend(optimizer, loss, 20)
    end = loss().item()
    assert end > start if given.kwargs.get("maximize") else end < start


@configurations
@pytest.mark.parametrize("makers", INFO.scheduler_inputs, ids=["step", "plateau", "chain"])
@implementation
def test_it_goes_the_right_direction_under_schedulers(
    given: OptimizerInput, makers: list[Callable[[DropMuon], Any]], foreach: bool
) -> None:
    params, loss = problem()
    optimizer = build(params, given, foreach=foreach)
    start = loss().item()
    descend(optimizer, loss, 20, [make(optimizer) for make in makers])
    end = loss().item()
    assert end > start if given.kwargs.get("maximize") else end < start


@pytest.mark.parametrize("makers", INFO.scheduler_inputs, ids=["step", "plateau", "chain"])
@implementation
def test_groups_with_a_rate_of_their_own_go_the_right_direction_under_schedulers(
    makers: list[Callable[[DropMuon], Any]], foreach: bool
) -> None:
    (weight, bias), loss = problem()
    groups: list[dict[str, Any]] = [{"params": [weight]}, {"params": [bias], "lr": 0.01}]
    optimizer = DropMuon(groups, lr=0.1, foreach=foreach)
    start = loss().item()
    descend(optimizer, loss, 20, [make(optimizer) for make in makers])
    assert loss().item() < start


@configurations
def test_foreach_equals_for_loop(given: OptimizerInput) -> None:
    ends = []
    for foreach in (True, False):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(s, dtype=torch.float64)) for s in [(4, 3), (3,), (4, 3)]]
        x = torch.randn(3, dtype=torch.float64)
        optimizer = build(params, given, foreach=foreach)

        def loss(params: list[Parameter] = params, x: Tensor = x) -> Tensor:
            a, b, c = params
            return ((a + c) @ (x + b)).square().sum()

        descend(optimizer, loss, 8)
        ends.append((snapshot(params), optimizer.state_dict()["state"]))
    torch.testing.assert_close(ends[0], ends[1])


@configurations
def test_non_contiguous_parameters_move_as_contiguous_ones(given: OptimizerInput) -> None:
    dense, loss = problem(dtype=torch.float64)
    optimizer = build(dense, given)
    strided = [Parameter(torch.stack([p.detach(), p.detach()], -1)[..., 0]) for p in dense]
    assert not any(param.is_contiguous() for param in strided)
    other = build(strided, given)
    for _ in range(5):
        optimizer.zero_grad()
        loss().backward()
        for ours, theirs in zip(strided, dense, strict=True):
            ours.grad = None if theirs.grad is None else theirs.grad.clone()
        optimizer.step()
        other.step()
    torch.testing.assert_close(snapshot(strided), snapshot(dense))


# When nothing is to be done


@configurations
def test_a_step_without_gradients_is_no_step(given: OptimizerInput) -> None:
    params = [torch.randn(2, 3), torch.randn(3)]  # not one of them wants a gradient
    before = snapshot(params)
    optimizer = build(params, given)
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.warns(UserWarning, match="no gradient"):
        optimizer.step()
    for _ in range(3):
        optimizer.step()  # warnings are errors here
    assert_equal(snapshot(params), before)
    assert_same_state(optimizer.state_dict(), state)


@configurations
@implementation
def test_zero_gradients_move_nothing(given: OptimizerInput, foreach: bool) -> None:
    params, _ = problem()
    before = snapshot(params)
    optimizer = build(params, given, foreach=foreach, weight_decay=0.0)
    for _ in range(3):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert_equal(snapshot(params), before)


@configurations
@implementation
def test_empty_parameters_are_no_trouble(given: OptimizerInput, foreach: bool) -> None:
    empty, vector, full = (Parameter(torch.ones(s)) for s in [(0, 3), (0,), (2, 3)])
    optimizer = build([empty, vector, full], given, foreach=foreach, sampler="full")
    for _ in range(3):
        for param in (empty, vector, full):
            param.grad = torch.ones_like(param)
        optimizer.step()
    assert torch.isfinite(full).all()
    assert not torch.equal(full, torch.ones(2, 3))
    assert optimizer.skipped == {}


def test_an_all_empty_model_is_no_trouble() -> None:
    param = Parameter(torch.ones(0, 3))
    optimizer = DropMuon([param])
    param.grad = torch.ones(0, 3)
    optimizer.step()


@implementation
def test_parameters_of_several_types_move_as_each_type_does_alone(foreach: bool) -> None:
    types = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    starts = [torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(t) for t in types]
    together = [Parameter(start.clone()) for start in starts]
    optimizer = DropMuon(together, lr=0.1, sampler="full", foreach=foreach)
    alone = [Parameter(start.clone()) for start in starts]
    singles = [DropMuon([param], lr=0.1, foreach=foreach) for param in alone]
    for step in range(3):
        for param in (*together, *alone):
            seeded = torch.Generator().manual_seed(step)
            param.grad = torch.randn(4, 3, generator=seeded).to(param.dtype)
        for each in (optimizer, *singles):
            each.step()
    assert_equal(snapshot(together), snapshot(alone))
    for param in together:
        assert optimizer.state[param]["momentum_buffer"].dtype == param.dtype
