"""Models with checkpointed or compiled blocks train as plain ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import take, values
from tests.models import PROBLEMS


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(3)
        )
        self.head = nn.Linear(6, 3)
        self.saves_memory = True

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            saving = self.saves_memory
            x = x + (checkpoint(block, x, use_reentrant=False) if saving else block(x))
        return self.head(x)


def test_checkpointed_blocks_train_as_plain_ones_do():
    torch.manual_seed(5)
    plain = Checkpointed().double()
    saving = copy.deepcopy(plain)
    plain.saves_memory = False
    _, make_batch, loss = PROBLEMS["mlp"]()
    ours = DropMuon(saving, lr=0.01, sampler=samplers.Serial())
    theirs = DropMuon(plain, lr=0.01, sampler=samplers.Serial())
    before, drawn = values(saving), set()
    for step in range(50):
        drawn.add(ours.active)
        assert take(ours, saving, make_batch(step), loss) == take(
            theirs, plain, make_batch(step), loss
        )
    assert len(drawn) == 9
    after = values(saving)
    assert all(torch.equal(values(plain)[name], value) for name, value in after.items())
    assert all(not torch.equal(before[name], after[name]) for name in after)


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["model", "blocks"])
def test_compiled_models_train_as_eager_ones_do(what):
    eager, make_batch, loss = PROBLEMS["residual"]()
    compiled = copy.deepcopy(eager)
    called: Any = compiled
    if what == "model":
        called = torch.compile(compiled, backend="eager")
    else:
        for block in compiled.blocks:
            block.compile(backend="eager")
    ours = DropMuon(called, lr=0.01, sampler=samplers.Progressive(), by="block")
    theirs = DropMuon(eager, lr=0.01, sampler=samplers.Progressive(), by="block")
    drawn = set()
    for step in range(20):
        drawn.add(ours.active)
        assert ours.active == theirs.active
        batch = make_batch(step)
        value = loss(called, batch)
        value.backward()
        loss(eager, batch).backward()
        for mine, other in zip(compiled.parameters(), eager.parameters(), strict=True):
            assert mine.requires_grad == other.requires_grad
            assert (mine.grad is None) == (other.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-12)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    assert len(drawn) > 3
    for mine, other in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)
