"""Parts under checkpointing, compilation, scalers; states and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dropmuon import DropMuon
from tests.backward.parted_problem import (
    make_batch,
    make_model,
    point,
    train,
)
from tests.fixed_set import Always

# Engines


@pytest.mark.parametrize("m", [2, 4])
def test_checkpointed_activations_are_recomputed_with_the_flags_they_had(m: int) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()

        def forward(self, x: Tensor) -> Tensor:
            for start in (0, 2, 4):
                x = checkpoint(self.inner[start : start + 2], x, use_reentrant=False)
            out: Tensor = self.inner[6](x)
            return out

    ours, theirs = Checkpointed(), make_model()
    train(ours, DropMuon(ours, lr=0.05, parts=m), 8)
    train(theirs, DropMuon(theirs, lr=0.05, parts=m), 8)
    torch.testing.assert_close(point(ours), point(theirs), rtol=0, atol=0)


def test_a_compiled_model_trains_alike() -> None:
    ours, theirs = make_model(), make_model()
    compiled: Any = torch.compile(ours, backend="aot_eager")
    train(compiled, DropMuon(compiled, lr=0.05, parts=2), 6)
    train(theirs, DropMuon(theirs, lr=0.05, parts=2), 6)
    torch.testing.assert_close(point(ours), point(theirs))


def test_a_gradient_scaler_scales_parts_alike() -> None:
    ours, theirs = make_model(), make_model()
    scaled, plain = DropMuon(ours, lr=0.05, parts=4), DropMuon(theirs, lr=0.05, parts=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k in range(5):
        x, y = make_batch(k)
        for some, labels in zip(x.chunk(4), y.chunk(4), strict=True):
            scaler.scale(F.cross_entropy(ours(some), labels) / 4).backward()
        scaler.step(scaled)
        scaler.update()
        scaled.zero_grad()
    train(theirs, plain, 5)
    torch.testing.assert_close(point(ours), point(theirs))


def test_torch_autograd_grad_sees_gradients_as_they_are() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=4)
    train(model, optimizer, 1)
    sets = list(optimizer.active_sets)
    x, y = make_batch(1)
    active: list[Any] = [
        p for i in optimizer.active for p in (model[2 * i].weight, model[2 * i].bias)
    ]
    found = torch.autograd.grad(F.cross_entropy(model(x), y), active)
    plain = copy.deepcopy(model).requires_grad_(True)
    names = [n for n, p in model.named_parameters() if any(p is each for each in active)]
    expected = torch.autograd.grad(
        F.cross_entropy(plain(x), y), [plain.get_parameter(name) for name in names]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert train(model, optimizer, 1, first=1) == [sets]  # it was not a part


def test_a_model_that_is_moved_after_the_optimizer_was_made_is_scaled_too() -> None:
    ours, theirs = make_model(), make_model()
    early = DropMuon(ours.float(), lr=0.05, parts=4)
    ours.double()
    late = DropMuon(theirs, lr=0.05, parts=4)
    theirs.load_state_dict(ours.state_dict())
    for optimizer, model in ((early, ours), (late, theirs)):
        train(model, optimizer, 4)
    torch.testing.assert_close(point(ours), point(theirs))


# States and copies


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_resumed_run_equals_an_unbroken_one(steps: int) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=3, seed=4)
    train(model, optimizer, steps)
    other = make_model()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = DropMuon(other, lr=0.05, parts=3, seed=0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    seen = [train(*each, 5, first=steps) for each in ((model, optimizer), (other, resumed))]
    assert seen[0] == seen[1]
    torch.testing.assert_close(point(model), point(other), rtol=0, atol=0)


def test_a_state_of_another_number_of_parts_is_refused() -> None:
    state = DropMuon(make_model(), parts=2).state_dict()
    with pytest.raises(ValueError, match="made with parts=2, but this optimizer has parts=3"):
        DropMuon(make_model(), parts=3).load_state_dict(state)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_watches_its_own_parameters(way: Any) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=4)
    train(model, optimizer, 2)
    other, copied = way((model, optimizer))
    for each, its in ((model, optimizer), (other, copied)):
        train(each, its, 4, first=2)
    torch.testing.assert_close(point(model), point(other), rtol=0, atol=0)


def test_an_optimizer_that_is_gone_leaves_gradients_as_they_are() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, parts=4)
    train(model, optimizer, 2)
    del optimizer
    x, y = make_batch(0)
    F.cross_entropy(model(x), y).backward()
    plain = make_model()
    plain.load_state_dict(model.state_dict())
    F.cross_entropy(plain(x), y).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


def test_a_parameter_unfrozen_later_takes_part() -> None:
    model = make_model()
    model[0].bias.requires_grad_(False)
    optimizer = DropMuon(model, lr=0.05, momentum=0.0, parts=2, sampler=Always((0, 3)))
    train(model, optimizer, 1)
    with optimizer.full():
        model[0].bias.requires_grad_(True)
    before = model[0].bias.detach().clone()
    train(model, optimizer, 1, first=1)
    assert (model[0].bias != before).any()
