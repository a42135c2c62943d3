"""Layers in order of execution, and work counted from shapes, as forward passes show them."""

from __future__ import annotations

from collections import UserDict
from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, layer_groups, presets
from dropmuon.model.forward import Work
from tests.model.layer_members import names

CASES = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Linear(5, 3)),
        lambda: torch.randn(16, 6),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.Flatten(),
            nn.Linear(256, 5),
        ),
        lambda: torch.randn(4, 3, 9, 9),
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8)),
        lambda: torch.randn(4, 10, 8),
    ),
}


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


def counted(model: nn.Module, x: Tensor, cutoff: int | None, optimizer: DropMuon) -> int:
    """Operations of a forward pass, and of the backward at a cutoff."""
    optimizer.activate(range(cutoff or 0, len(optimizer.layers)))
    with FlopCounterMode(display=False) as counter:
        loss = model(x).square().mean()
        if cutoff is not None:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_costs_are_the_counted_operations(case: str) -> None:
    make, data = CASES[case]
    torch.manual_seed(0)
    model, x = make(), data()
    optimizer = DropMuon(model, policy="euclidean")
    work = Work(optimizer.roster)
    model(x)
    work.close()
    fixed, backward = work.costs(turns=1)
    assert fixed == counted(model, x, None, optimizer)
    for cutoff in range(len(backward)):
        expected = counted(model, x, cutoff, optimizer) - fixed
        assert sum(backward[cutoff:]) == expected


def test_a_closed_counter_counts_no_more_and_evaluation_is_not_counted() -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    work = Work(DropMuon(model).roster)
    model(x)
    with torch.no_grad():
        model(x)
    once = work.costs(1)
    work.close()
    model(x)
    assert work.costs(1) == once


def test_updates_are_in_the_fixed_cost_and_shared_by_turns() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    work = Work(DropMuon(model).roster)
    work.close()
    forward = 2 * 2 * 64.0
    updates = work.costs(1)[0] - forward
    assert updates == 2 * (2 * 15 * 8**3)
    assert work.costs(4)[0] == forward + updates / 4


def test_without_modules_every_weight_counts_as_if_it_met_as_many_positions() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    work = Work(DropMuon(model.named_parameters(), policy="euclidean").roster)
    model(torch.randn(5, 6))
    assert work.costs(1) == (2 * (48 + 24), [2 * (48 + 24), 2 * 24])


def test_tables_and_vectors_multiply_nothing() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    work = Work(presets.muon(model).roster)
    model(torch.zeros(5, 3, dtype=torch.long))
    head = 2 * 8 * 15.0
    assert work.costs(1) == (head, [0, head, head])
