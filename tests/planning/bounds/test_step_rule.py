"""Steps with a plan's constants: they train as recommended."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, samplers
from dropmuon.planning import plan
from dropmuon.step.rules import Generalized, Smooth, StepRule
from dropmuon.theory import Regime
from tests.planning.synthetic_plans import random_plan

Data = list[tuple[Tensor, Tensor]]


class Attending(nn.Module):
    """Single layers of it may take steps that are several times too long for all together."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        x = self.norm(x + self.attention(x, x, x)[0])
        return self.head(x + self.inner(x)).flatten(0, 1)


def mlp() -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(3)]


def attention() -> tuple[nn.Module, Data]:
    """What comes before each token, which no single token tells: much noise stays."""
    torch.manual_seed(0)
    model, tokens = Attending(), [torch.randint(0, 20, (8, 12)) for _ in range(6)]
    return model, [(each, each.roll(1, 1).flatten()) for each in tokens]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("made", "regime", "kind", "share"),
    [
        (mlp, "smooth", Smooth, 0.8),
        (mlp, "1/eps", Generalized, 0.8),
        (attention, "smooth", Smooth, 0.95),
    ],
)
def test_the_steps_of_a_plan_train_as_recommended(
    made: Any, regime: Regime, kind: type[StepRule], share: float
) -> None:
    """`DropMuon(model, lr=1.0, sampler=..., step_rule=plan.step_rule)`, and nothing else."""
    model, batches = made()
    found = plan(model, loss, batches, budget=4.0, points=5, lr=0.02, regime=regime)
    assert found.bounds.applied_regime == regime
    assert isinstance(found.step_rule, kind)
    single = next(o for o in found.options if o.name.startswith("blocks of 1"))
    fastest = max(found.options, key=lambda option: option.fresh.speedup)
    for sampler in (fastest.sampler, single.sampler, samplers.Full()):
        trained = copy.deepcopy(model)
        optimizer = DropMuon(trained, lr=1.0, sampler=sampler, step_rule=found.step_rule, seed=0)
        assert optimizer.param_groups[0]["momentum"] == 0.0
        for k in range(150):
            loss(trained, batches[k % len(batches)]).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            before, after = (sum(loss(m, each) for each in batches) for m in (model, trained))
        assert after < share * before


def test_steps_with_momentum_are_refused() -> None:
    model, _ = mlp()
    rule = random_plan(["0", "2", "4"], 0).step_rule
    with pytest.raises(ValueError, match=r"momentum=0.9 contradicts"):
        DropMuon(model, lr=1.0, momentum=0.9, step_rule=rule)


def test_steps_are_no_longer_than_the_upper_ends_allow() -> None:
    found = random_plan([f"layer{i}" for i in range(3)], 0)
    for active, ends in found.smoothness.intervals.smooth.items():
        for i in active:
            length = found.step_rule.length(i, active, torch.ones(()), torch.ones(()))
            assert float(length) <= 1 / ends[i, 1] * (1 + 1e-6)
            assert ends[i, 1] >= found.smoothness.smooth.l0(i, active)
