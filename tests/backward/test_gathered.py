"""FSDP2 and flags: it sees everything trainable once, and what it gathers follows the flags."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dropmuon import DropMuon
from tests.contract.process_group import process_group
from tests.step.sharded_runs import Net, make, train

pytestmark = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)


def sharded(**settings: Any) -> Net:
    model = make()
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def trainable(model: nn.Module) -> set[str]:
    names = (name for name, each in model.named_parameters() if each.requires_grad)
    return {name.rpartition(".")[0] for name in names}


def test_a_group_that_is_frozen_at_first_has_gradients_of_its_own_type_later() -> None:
    mixed = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    with process_group():
        model = sharded(mp_policy=mixed)
        optimizer = DropMuon(model, lr=0.05, full_start=False)
        optimizer.activate([8])
        train(model, optimizer, 1)
        assert optimizer.moves == {name: int(name == "head") for name in optimizer.layers}
        optimizer.activate(range(9))
        train(model, optimizer, 1)
        assert min(optimizer.moves.values()) == 1


def test_flags_hold_from_the_first_forward_on() -> None:
    with process_group():
        model = sharded()
        optimizer = DropMuon(model, lr=0.05, full_start=False)
        optimizer.activate([7, 8])
        assert len(trainable(model)) == 9
        model(torch.arange(4)).sum().backward()
        assert trainable(model) == {"norm", "head"}
        graded = {name for name, each in model.named_parameters() if each.grad is not None}
        assert graded == {"norm.weight", "norm.bias", "head.weight", "head.bias"}


def test_a_resumed_run_waits_too() -> None:
    with process_group():
        model = sharded()
        optimizer = DropMuon(model, lr=0.05)
        train(model, optimizer, 5)
        other = sharded()
        resumed = DropMuon(other, lr=0.05)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert len(trainable(other)) == 9
        assert resumed.active == optimizer.active
        train(other, resumed, 1)
        assert resumed.active == (train(model, optimizer, 1) and optimizer.active)
