"""Shares that follow noise in training: when noise is measured, and what is saved."""

from __future__ import annotations

import copy
import io
import math
import pickle
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dropmuon import DropMuon, samplers
from dropmuon.samplers import Adaptive
from dropmuon.step.adaptation import Adaptation
from tests.backward.parted_problem import LAYERS, make_batch, make_model, point

M = 4
COSTS = (1.0, (1.0,) * LAYERS)


def adaptive(model: nn.Module, **given: Any) -> DropMuon:
    rule = Adaptive(caution=0.3, first=2, every=3)
    return DropMuon(model, lr=0.02, **{"sampler": rule, "parts": M, "seed": 3, **given})


def train(model: nn.Module, optimizer: DropMuon, steps: int, first: int = 0) -> list[Any]:
    """Return the shares of each step."""
    seen = []
    for k in range(first, first + steps):
        seen.append(optimizer.shares)
        for x, y in optimizer.split(*make_batch(k, 400)):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen


def test_full_steps_come_first_and_shares_follow() -> None:
    model = make_model()
    seen = train(model, adaptive(model), 12)
    assert seen[:2] == [(1.0,) * LAYERS] * 2
    assert seen[2][0] < 1
    assert all(shares[-1] == 1 for shares in seen)
    assert all(a <= b for shares in seen for a, b in pairwise(shares))


def test_a_measured_step_has_every_layer_in_two_parts() -> None:
    adaptation = Adaptation(Adaptive(COSTS, first=1, every=5), LAYERS, 8)
    adaptation.note(0, [1.0] * LAYERS, [0.0] * LAYERS)
    assert adaptation.counts == (1, 1, 1, 8)
    shares = {step: adaptation.sampler_at(step) for step in range(1, 8)}
    assert [step for step in shares if adaptation.measures_at(step)] == [5, 6, 7]
    assert {sampler.shares[0] for step, sampler in shares.items() if step < 5} == {1 / 8}
    assert shares[5].shares[0] == 2 / 8


def test_much_noise_ends_in_full_steps() -> None:
    adaptation = Adaptation(Adaptive(COSTS, first=1), LAYERS, M)
    for step in range(9):
        adaptation.note(step, [1.0] * LAYERS, [100.0] * LAYERS)
    assert adaptation.sampler_at(9).shares == (1.0,) * LAYERS


def test_unknown_measurements_keep_the_estimates() -> None:
    adaptation = Adaptation(Adaptive(COSTS, first=1), LAYERS, M)
    assert all(map(math.isnan, adaptation.ratios))
    adaptation.note(0, [math.nan] * LAYERS, [math.nan] * LAYERS)
    assert adaptation.sampler_at(5) is None
    adaptation.note(1, [2.0] * LAYERS, [1.0] * LAYERS)
    adaptation.note(2, [math.nan, math.inf, 4.0, 2.0], [1.0, math.nan, 1.0, 1.0])
    assert adaptation.ratios == pytest.approx((0.5, 0.5, 1 / 3, 0.5))


def test_a_resumed_run_equals_an_unbroken_one() -> None:
    unbroken = make_model()
    whole = adaptive(unbroken, turns=2)
    seen = train(unbroken, whole, 14)
    assert len(set(seen)) > 1
    for stop in (1, 2, 5, 6, 9):
        model = make_model()
        optimizer = adaptive(model, turns=2)
        train(model, optimizer, stop)
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        resumed_model = make_model()
        resumed_model.load_state_dict(weights)
        resumed = adaptive(resumed_model, turns=2)
        resumed.load_state_dict(state)
        assert train(resumed_model, resumed, 14 - stop, first=stop) == seen[stop:]
        torch.testing.assert_close(point(resumed_model), point(unbroken), rtol=0, atol=0)
        assert resumed.noise == whole.noise


@pytest.mark.parametrize("stop", [0, 1, 4])
def test_copies_and_pickles_go_on_alike(stop: int) -> None:
    model = make_model()
    optimizer = adaptive(model, sampler=Adaptive(COSTS, first=2, every=3))
    train(model, optimizer, stop)
    twins = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    seen = train(model, optimizer, 6, first=stop)
    for other, twin in twins:
        assert train(other, twin, 6, first=stop) == seen
        torch.testing.assert_close(point(other), point(model), rtol=0, atol=0)


def test_added_layers_start_it_anew() -> None:
    model = make_model()
    optimizer = adaptive(model)
    train(model, optimizer, 4)
    head = nn.Linear(3, 3).double()
    optimizer.add_param_group({"params": list(head.named_parameters()), "layer": "new"})
    longer = nn.Sequential(model, head)
    seen = train(longer, optimizer, 4, first=4)
    assert seen[:2] == [(1.0,) * (LAYERS + 1)] * 2
    assert len(optimizer.noise or ()) == LAYERS + 1
    assert min(seen[2]) < 1


def test_a_hand_made_set_and_full_blocks_are_measured_as_far_as_they_go() -> None:
    model = make_model()
    optimizer = adaptive(model)
    train(model, optimizer, 1)
    before = optimizer.noise
    optimizer.activate([LAYERS - 1])
    train(model, optimizer, 1, first=1)
    assert optimizer.noise[:-1] == before[:-1]
    assert optimizer.noise[-1] != before[-1]


def test_costs_are_counted_in_the_first_step() -> None:
    model = make_model()
    optimizer = adaptive(model)
    train(model, optimizer, 1)
    fixed, backward = optimizer.state_dict()["dropmuon"]["adaptation"]["costs"]
    sizes = [w.numel() for w, _ in point(model)]
    assert backward == [2 * 400 * (a + b) for a, b in zip(sizes, [*sizes[1:], 0], strict=True)]
    assert fixed > 2 * 400 * sum(sizes)
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    assert all(type(hook).__module__ == "dropmuon.backward.strays" for hook in hooks)


def test_one_part_leaves_no_way_to_measure() -> None:
    with pytest.raises(ValueError, match="parts=1 leaves sampler='adaptive' no way to measure"):
        DropMuon(make_model(), sampler="adaptive")


def test_a_state_of_another_sampler_is_refused() -> None:
    state = DropMuon(make_model(), parts=M).state_dict()
    with pytest.raises(ValueError, match="build it with the same sampler"):
        adaptive(make_model()).load_state_dict(state)
    assert isinstance(adaptive(make_model()).sampler, samplers.Adaptive)
