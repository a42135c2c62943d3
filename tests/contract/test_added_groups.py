"""Parameter groups that are added in mid-training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import flags, moves_every_layer, started, take, values
from tests.models import PROBLEMS


def test_an_added_layer_makes_the_next_step_full_and_moves():
    model, make_batch, _, optimizer = started("mlp", (1,))
    late = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [("late.shift", late)]})
    assert optimizer.layers == ("0", "2", "4", "late")
    assert optimizer.active == (0, 1, 2, 3)
    assert all(flags(model).values())
    before = values(model)
    shifted = lambda model, batch: nn.functional.mse_loss(model(batch[0]) + late, batch[1])  # noqa: E731
    take(optimizer, model, make_batch(1), shifted)
    assert all(not torch.equal(before[name], value) for name, value in values(model).items())
    assert late.abs().sum() > 0
    assert optimizer.active == (1,)
    assert late.requires_grad is False


def test_an_added_group_may_join_a_layer():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    gain = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer.add_param_group({"params": [("2.gain", gain)], "layer": "2"})
    assert optimizer.layers == ("0", "2", "4")
    scaled = lambda model, batch: gain * loss(model, batch)  # noqa: E731
    take(optimizer, model, make_batch(1), scaled)
    take(optimizer, model, make_batch(2), scaled)
    assert gain.requires_grad
    assert optimizer.state[gain]["updates"] == 2


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"layer": "new"}, "probabilities"),
        ({"layer": "0", "lr": -1.0}, "lr must be"),
        ({"layer": "0", "norm": "spectrall"}, "did you mean"),
        ({"layer": "0", "momentum": 2.0}, "momentum must be"),
    ],
)
def test_a_group_that_does_not_fit_is_a_clear_error_and_changes_nothing(group, message):
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial([0.2, 0.3, 0.5]))
    for step in range(3):
        take(optimizer, model, make_batch(step), loss)
    active, shown, text = optimizer.active, flags(model), str(optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [("w", nn.Parameter(torch.ones(2)))], **group})
    assert (optimizer.active, flags(model), str(optimizer)) == (active, shown, text)
    assert len(optimizer.state_dict()["param_groups"]) == len(saved["param_groups"])
    assert optimizer.state_dict()["dropmuon"] == saved["dropmuon"]
    assert moves_every_layer(optimizer, model, make_batch, loss)
