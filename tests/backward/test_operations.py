"""What freezing saves, counted: to the operation what a hand-placed `detach` would save."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, samplers
from tests.models import PROBLEMS


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Stages(nn.Module):
    """A model as a list of stages, cut by hand: `detach` before one, `no_grad` below it."""

    def __init__(self, stages):
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.cutoff = None

    def forward(self, x):
        for n, stage in enumerate(self.stages):
            if self.cutoff is None or n >= self.cutoff:
                x = stage(x.detach() if n == self.cutoff else x)
            else:
                with torch.no_grad():
                    x = stage(x)
        return x


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(13, 8), nn.Parameter(torch.randn(10, 8))
        self.project = nn.Linear(8, 16)

    def forward(self, tokens):
        return self.project(self.token(tokens) + self.position)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.mix = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.mix(y, y, y, need_weights=False)[0]


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def cnn():
    widths = [3, 6, 8, 10, 12]
    stages = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in pairwise(widths)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5))
    return Stages([*stages, head]), torch.randn(4, 3, 8, 8)


def transformer():
    stages = [Embed(), Attend(), Feed(), Attend(), Feed(), nn.Linear(16, 13)]
    return Stages(stages), torch.randint(13, (4, 10))


def built(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def by_stage(name, parameter):
    return int(name.split(".")[1])


def operations(model, x):
    with FlopCounterMode(display=False) as counter:
        model(x).square().mean().backward()
    return counter.get_total_flops()


def frozen(make, cutoff):
    """The model after a full step, with everything below the cutoff frozen by the optimizer."""
    model, x = built(make)
    optimizer = DropMuon(model, lr=0.01, by=by_stage, sampler=samplers.Progressive())
    for _ in range(200):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.active[0] == cutoff:
            return model, x, optimizer
    raise AssertionError(f"cutoff {cutoff} was never drawn")


MAKERS = {"cnn": cnn, "transformer": transformer}
CUTOFFS = [
    (name, cutoff) for name, make in MAKERS.items() for cutoff in range(len(make()[0].stages))
]


@pytest.mark.parametrize(("name", "cutoff"), CUTOFFS)
def test_operations_equal_those_of_a_detach_at_the_cutoff(name, cutoff):
    model, x, optimizer = frozen(MAKERS[name], cutoff)
    by_hand = copy.deepcopy(model).requires_grad_(True)
    by_hand.cutoff = cutoff
    if not x.is_floating_point() and cutoff == 0:
        by_hand.cutoff = None
    ours, theirs = operations(model, x), operations(by_hand, x)
    assert ours == theirs > 0
    for (key, mine), other in zip(
        model.named_parameters(), by_hand.named_parameters(), strict=True
    ):
        assert (mine.grad is None) == (other[1].grad is None), key
        if mine.grad is not None:
            assert torch.equal(mine.grad, other[1].grad), key
    assert len(optimizer.layers) == len(model.stages)


@pytest.mark.parametrize("name", MAKERS)
def test_operations_fall_strictly_with_the_cutoff(name):
    cases = [frozen(MAKERS[name], cutoff) for which, cutoff in CUTOFFS if which == name]
    counts = [operations(model, x) for model, x, _ in cases]
    assert all(higher < lower for lower, higher in pairwise(counts))
    model, x = built(MAKERS[name])
    assert counts[0] == operations(model, x)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(x)
    assert counts[-1] > forward.get_total_flops(), "the forward of the prefix is not free"


@pytest.mark.parametrize("name", MAKERS)
def test_a_wrong_order_costs_savings_and_no_more_than_a_full_pass(name):
    model, x = built(MAKERS[name])
    full = operations(copy.deepcopy(model), x)
    last = len(model.stages) - 1
    pairs = sorted(model.named_parameters(), key=lambda item: -by_stage(*item))
    groups = [{"params": [(n, p)], "layer": f"{last - by_stage(n, p)}"} for n, p in pairs]
    optimizer = DropMuon(groups, lr=0.01, sampler=samplers.Serial(), policy="euclidean")
    counts = {}
    for _ in range(40):
        counts[optimizer.active] = operations(model, x)
        optimizer.step()
        optimizer.zero_grad()
    assert max(counts.values()) == full
    assert counts[0,] < counts[last - 1,] < full


@pytest.mark.parametrize("name", MAKERS)
def test_without_truncation_nothing_is_saved(name):
    model, x = built(MAKERS[name])
    full = operations(copy.deepcopy(model), x)
    optimizer = DropMuon(model, by=by_stage, sampler=samplers.Serial(), truncate=False)
    for _ in range(5):
        assert operations(model, x) == full
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", MAKERS)
def test_an_inactive_layer_above_the_cutoff_passes_the_gradient_on_and_computes_none(name):
    """Serial and progressive at one cutoff differ by the weight gradients above it."""
    model, x, optimizer = frozen(MAKERS[name], 1)
    assert optimizer.active[0] == 1
    progressive = operations(model, x)
    model.zero_grad()
    for stage in model.stages[2:]:
        stage.requires_grad_(False)
    serial = operations(model, x)
    assert serial < progressive
    model, x = built(MAKERS[name])
    optimizer = DropMuon(model, lr=0.01, by=by_stage, sampler=samplers.Serial())
    for _ in range(200):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.active == (1,):
            break
    assert operations(model, x) == serial


def test_the_stock_problems_save_too():
    for name, make in PROBLEMS.items():
        model, make_batch, loss = make()
        optimizer = DropMuon(model, lr=0.01, sampler=samplers.Progressive())
        counts = {}
        for step in range(25):
            with FlopCounterMode(display=False) as counter:
                loss(model, make_batch(step)).backward()
            counts[optimizer.active[0]] = counter.get_total_flops()
            optimizer.step()
            optimizer.zero_grad()
        ordered = [counts[cutoff] for cutoff in sorted(counts)]
        assert ordered == sorted(ordered, reverse=True), name
        assert ordered[-1] < ordered[0], name
