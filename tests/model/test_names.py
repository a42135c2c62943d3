"""Names of layers, whatever wraps the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, samplers
from tests.contract.process_group import process_group
from tests.model.layer_members import members, train
from tests.models import PROBLEMS


@pytest.fixture
def _process_group():
    with process_group():
        yield


@pytest.mark.usefixtures("_process_group")
def test_a_model_in_ddp_has_clean_names_and_trains():
    model, make_batch, loss = PROBLEMS["residual"]()
    plain = copy.deepcopy(model)
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    for options in ({}, {"by": "block"}, {"example": make_batch(0)[0]}):
        assert members(wrapped, **options) == members(plain, **options)
    ours = DropMuon(wrapped, sampler=samplers.Serial())
    theirs = DropMuon(plain, sampler=samplers.Serial())
    for step in range(8):
        batch = make_batch(step)
        train(ours, lambda batch=batch: loss(wrapped, batch), 1)
        train(theirs, lambda batch=batch: loss(plain, batch), 1)
        assert ours.active == theirs.active
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


def test_compiled_models_have_clean_names():
    model, make_batch, _ = PROBLEMS["residual"]()
    whole: Any = torch.compile(copy.deepcopy(model), backend="eager")
    inside: Any = copy.deepcopy(model)
    for n, block in enumerate(inside.blocks):
        inside.blocks[n] = torch.compile(block, backend="eager")
    assert any("_orig_mod" in name for name, _ in whole.named_parameters())
    assert any("_orig_mod" in name for name, _ in inside.named_parameters())
    for wrapped in (whole, inside):
        assert members(wrapped) == members(model)
        assert members(wrapped, by="block") == members(model, by="block")
    assert members(whole, example=make_batch(0)[0]) == members(model)


def test_a_parametrized_module_is_one_layer():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    optimizer = DropMuon(nn.Sequential(module, nn.Linear(4, 2)))
    assert optimizer.layers == ("0", "1")
