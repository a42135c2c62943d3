"""Counted work: against torch's own counter of operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, presets
from dropmuon.model.work import Work

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
