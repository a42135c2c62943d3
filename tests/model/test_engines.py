"""Engines that replace parameters are followed, those that flatten or divide them refused."""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

from dropmuon import DropMuon
from tests.contract.process_group import process_group
from tests.step.small_steps import set_gradients

pytestmark = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: DropMuon, steps: int = 3) -> list[Tensor]:
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    values = [p.detach() for p in model.parameters()]
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in values]


def shard(model: nn.Module) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


@pytest.mark.parametrize("settings", [{}, {"full_start": False}, {"policy": "muon"}], ids=str)
def test_an_optimizer_made_before_fully_shard_follows_the_parameters(settings: Any) -> None:
    ours, theirs = make(), make()
    optimizer = DropMuon(ours, lr=0.1, seed=2, **settings)
    with process_group():
        shard(ours)
        found = train(ours, optimizer)
    torch.testing.assert_close(found, train(theirs, DropMuon(theirs, lr=0.1, seed=2, **settings)))
    assert all(isinstance(member.parameter, DTensor) for member in optimizer.roster.members())


def test_parameters_that_are_switched_in_the_groups_are_followed() -> None:
    ours, theirs = make(), make()
    optimizer = DropMuon(ours, lr=0.1)
    copies = {p: nn.Parameter(p.detach().clone()) for p in ours.parameters()}
    for group in optimizer.param_groups:
        group["params"] = [copies[p] for p in group["params"]]
    for module in ours:
        module.weight, module.bias = copies[module.weight], copies[module.bias]
    found = train(ours, optimizer)
    torch.testing.assert_close(found, train(theirs, DropMuon(theirs, lr=0.1)))
    assert optimizer.layers == ("0", "1", "2")


def test_parameters_that_are_replaced_after_a_step_are_refused() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.1)
    train(model, optimizer, 1)
    group = optimizer.param_groups[0]
    group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]
    with pytest.raises(RuntimeError, match=r"were replaced after their first step.*make DropMuon"):
        optimizer.step()


def test_groups_of_flat_parameters_are_refused() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.1)
    for group in optimizer.param_groups:
        flat = torch.cat([p.detach().flatten() for p in group["params"]])
        group["params"] = [nn.Parameter(flat)]
    with pytest.raises(RuntimeError, match=r"param_groups has 6 parameters.*fully_shard|ZeRO"):
        optimizer.step()


def test_a_parameter_that_changed_its_shape_is_refused() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.1)
    model[0].weight.data = model[0].weight.data.flatten()[:7]
    with pytest.raises(
        RuntimeError, match=r"'0.weight' had shape \(4, 6\)|\(6, 4\).*now has \(7,\)"
    ):
        optimizer.step()


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_fsdp1_is_refused(use_orig_params: bool) -> None:
    with process_group():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FSDP's own, of a single rank
            model = FullyShardedDataParallel(
                make(), device_id=torch.device("cpu"), use_orig_params=use_orig_params
            )
        for params in (partial(DropMuon, model), partial(DropMuon, nn.Sequential(model))):
            with pytest.raises(ValueError, match=r"\(FSDP1\).*fully_shard"):
                params()
        if not use_orig_params:
            with pytest.raises(ValueError, match=r"flattened by FSDP1.*fully_shard"):
                DropMuon(model.named_parameters())


def test_zero_of_deepspeed_is_refused() -> None:
    parameter = nn.Parameter(torch.empty(0))
    parameter.ds_id = 3  # type: ignore[attr-defined]  # as its stage 3 marks them
    with pytest.raises(ValueError, match=r"flattened by DeepSpeed's ZeRO.*fully_shard"):
        DropMuon([("head.weight", parameter)])


def test_an_optimizer_per_rank_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of torch.jit
        zero = importlib.import_module("torch.distributed.optim").ZeroRedundancyOptimizer
    with process_group(), pytest.raises(TypeError, match=r"optimizer_class=DropMuon.*fully_shard"):
        zero(make().parameters(), optimizer_class=DropMuon, lr=0.1)


def test_gradients_that_are_set_by_hand_are_followed_as_before() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    set_gradients(model, 0)
    optimizer.step()
    assert not any(map(torch.equal, before, model.parameters()))
