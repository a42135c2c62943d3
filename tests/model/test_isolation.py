"""Whatever is tried on a model is undone bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from dropmuon.model.isolation import untouched
from tests.awkward_problem import awkward, state_of


def spoil(model: nn.Module) -> None:
    """Change everything that can be changed."""
    model.train(not model.training)
    model.zero_grad()
    for parameter in model.parameters():
        parameter.requires_grad_(not parameter.requires_grad)
        parameter.data.mul_(-2.0)
        parameter.grad = torch.ones_like(parameter)
    model[0].weight.data = torch.zeros(2, 2)
    model[0].bias.note = "new"
    model[1].running_mean = torch.ones(6)
    model[1].num_batches_tracked.add_(5)
    model[2].seen = 1
    model[4].weight = nn.Parameter(torch.zeros(1))
    torch.rand(3), random.random(), np.random.rand()


def test_untouched_restores_everything_bit_for_bit():
    model = awkward()
    before = state_of(model)
    with untouched(model):
        assert all(parameter.grad is None for parameter in model.parameters())
        spoil(model)
        assert state_of(model) != before
    assert state_of(model) == before


def test_untouched_restores_everything_after_an_exception():
    model = awkward()
    before = state_of(model)

    def spoil_and_fail() -> None:
        with untouched(model):
            spoil(model)
            raise KeyError

    with pytest.raises(KeyError):
        spoil_and_fail()
    assert state_of(model) == before


def test_negative_zeros_and_nans_come_back_as_they_were():
    model = nn.Linear(2, 2)
    model.weight.data = torch.tensor([[-0.0, float("nan")], [0.0, float("inf")]])
    before = state_of(model)
    with untouched(model):
        model.weight.data.abs_()
    assert state_of(model) == before


def test_expanded_buffers_are_no_obstacle():
    model = nn.Linear(2, 2)
    model.register_buffer("places", torch.zeros(1).expand(4))
    with untouched(model):
        model(torch.ones(2))
    assert model.places.stride() == (0,)


def test_parameters_that_are_left_alone_keep_their_changes_and_all_else_is_restored():
    model = awkward()
    weight, grad = model[0].weight, model[0].weight.grad
    others = state_of(model)[2:]
    with untouched(model, parameters=False):
        assert weight.grad is grad
        weight.data.fill_(7.0)
        model.eval()
        model[1].running_mean.fill_(5.0)
        torch.rand(3), random.random(), np.random.rand()
    assert (weight == 7.0).all()
    assert (model[1].running_mean == 0.0).all()
    assert state_of(model)[2:] == others
