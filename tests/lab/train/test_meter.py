"""The steps that trials take, and the pieces that they accumulate gradients over."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon
from dropmuon.lab.config import Config
from dropmuon.lab.train.meter import train_step


@given(st.integers(1, 30), st.integers(1, 40))
def test_a_step_in_pieces_equals_the_step_in_one(examples: int, piece: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batch = torch.randn(examples, 4, dtype=torch.float64), torch.randint(0, 3, (examples,))
    whole, cut = copy.deepcopy(model), copy.deepcopy(model)
    sizes: list[int] = []
    cut.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    train_step(whole, torch.optim.SGD(whole.parameters(), lr=0.1), batch)
    train_step(cut, torch.optim.SGD(cut.parameters(), lr=0.1), batch, piece=piece)
    assert max(sizes) <= piece
    assert sum(sizes) == examples
    assert max(sizes) - min(sizes) <= 1
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_an_optimizer_in_parts_keeps_its_own() -> None:
    model = nn.Linear(4, 3)
    sizes: list[int] = []
    model.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    batch = torch.randn(12, 4), torch.randint(0, 3, (12,))
    train_step(model, DropMuon(model, lr=0.1, parts=3), batch, piece=1)
    assert sizes == [4, 4, 4]


@pytest.mark.parametrize(
    ("methods", "piece"),
    [
        (("full", "adamw"), 3500),
        (("full", "drop-muon:parts-4"), 875),
        (("drop-muon:parts-3", "drop-muon:adaptive", "full"), 438),
    ],
)
def test_pieces_are_as_large_as_the_smallest_parts(methods: tuple[str, ...], piece: int) -> None:
    assert Config(methods=methods, batch_size=3500).piece == piece
