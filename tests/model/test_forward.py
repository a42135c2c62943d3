"""Layers in order of execution, as forward passes show them."""

from __future__ import annotations

from collections import UserDict
from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, layer_groups
from tests.model.layer_members import names


class Backwards(nn.Module):
    """Registered from the output to the input."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.middle = nn.Linear(3, 3)
        self.first = nn.Linear(2, 3)

    def forward(self, x, *, scale=1.0, shift=None):
        x = self.last(self.middle(self.first(x * scale)))
        return x if shift is None else x + shift


@pytest.mark.parametrize(
    "example",
    [
        torch.ones(4, 2),
        (torch.ones(4, 2),),
        {"x": torch.ones(4, 2), "scale": 2.0, "shift": torch.ones(1)},
        UserDict(x=torch.ones(4, 2), scale=2.0),
        MappingProxyType({"x": torch.ones(4, 2)}),
    ],
    ids=["tensor", "tuple", "dict", "UserDict", "mapping"],
)
def test_with_an_example_layers_come_in_order_of_execution(example):
    assert names(Backwards()) == ["last", "middle", "first"]
    assert names(Backwards(), example=example) == ["first", "middle", "last"]
    assert DropMuon(Backwards(), example=example).layers == ("first", "middle", "last")


def test_execution_order_is_seen_through_functional_uses():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Parameter(torch.ones(3, 3))
            self.a = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return nn.functional.linear(nn.functional.linear(x, self.a), self.b)

    ordered = names(Functional(), by=lambda name, p: name, example=torch.ones(1, 2))
    assert ordered == ["a", "b"]


def test_execution_order_sees_inside_a_stock_transformer_layer():
    model = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    assert names(model, example=torch.ones(1, 3, 4)) == [
        *("self_attn", "self_attn.out_proj", "norm1", "linear1", "linear2", "norm2"),
    ]


def test_an_example_that_does_not_run_is_a_clear_error_and_leaves_the_model_alone():
    model = Backwards()
    with pytest.raises(ValueError, match="example could not be run"):
        layer_groups(model, example=torch.ones(4, 7))
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.mean = nn.BatchNorm1d(3, momentum=None)
        self.drop = nn.Dropout(0.5)
        self.evaluated = nn.BatchNorm1d(3).eval()

    def forward(self, x):
        x = self.evaluated(self.drop(self.mean(self.norm(self.stem(x)))))
        return x + torch.rand(())


def test_the_example_run_leaves_generators_modes_and_statistics_as_they_were():
    model = Noisy()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    modes = {name: module.training for name, module in model.named_modules()}
    assert modes["evaluated"] is False
    state = torch.get_rng_state()
    DropMuon(model, example=torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_the_example_run_restores_buffers_that_are_written_in_evaluation_too():
    class Counting(nn.Linear):
        calls: Tensor

        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = nn.Sequential(Counting(), nn.Linear(2, 1))
    DropMuon(model, example=torch.ones(1, 2))
    assert model[0].calls == 0
