"""Flags: parameters are frozen and unfrozen, and never against the user's wishes."""

from __future__ import annotations

import copy
import gc
import io
import warnings

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import (
    flags,
    leaves_of_graph,
    moves_every_layer,
    started,
    take,
    values,
)
from tests.fixed_set import Always
from tests.models import PROBLEMS

# The user's own wishes


@pytest.mark.parametrize("truncate", [True, False])
def test_what_the_user_froze_is_never_unfrozen_nor_moved(truncate):
    model, make_batch, loss = PROBLEMS["residual"]()
    model.blocks[1].requires_grad_(False)
    model.head.bias.requires_grad_(False)
    wished = flags(model)
    frozen = [name for name, wanted in wished.items() if not wanted]
    before = values(model)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Nice(2), truncate=truncate)
    for step in range(15):
        now = flags(model)
        assert not any(now[name] for name in frozen)
        take(optimizer, model, make_batch(step), loss)
        with optimizer.full():
            assert flags(model) == wished
    after = values(model)
    for name in wished:
        assert torch.equal(before[name], after[name]) == (name in frozen), name
    del optimizer
    gc.collect()
    assert flags(model) == wished


@pytest.mark.parametrize("active", [(0,), (1, 2)])
def test_a_wish_made_inside_full_counts_from_then_on(active):
    model, make_batch, loss, optimizer = started("mlp", active)
    with optimizer.full():
        assert all(flags(model).values())
        model[2].weight.requires_grad_(False)
    before = values(model)
    optimizer.draws.sampler = samplers.Full()
    for step in range(3):
        take(optimizer, model, make_batch(step), loss)
        assert model[2].weight.requires_grad is False
    after = values(model)
    assert torch.equal(after["2.weight"], before["2.weight"])
    assert not torch.equal(after["2.bias"], before["2.bias"])
    with optimizer.full():
        model[2].weight.requires_grad_(True)
    take(optimizer, model, make_batch(3), loss)
    assert not torch.equal(model[2].weight, before["2.weight"])


def test_a_direct_wish_about_an_active_parameter_counts_from_then_on():
    model, make_batch, loss, optimizer = started("mlp", (1, 2))
    model[2].weight.requires_grad_(False)
    before = model[2].weight.detach().clone()
    for step in range(4):
        take(optimizer, model, make_batch(step), loss)
    assert torch.equal(model[2].weight, before)
    model[2].weight.requires_grad_(True)
    for step in range(2):
        take(optimizer, model, make_batch(step), loss)
    assert not torch.equal(model[2].weight, before)


def test_a_parameter_that_was_frozen_from_the_start_may_be_unfrozen_directly():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[2].weight.requires_grad_(False)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), seed=4)
    for step in range(4):
        take(optimizer, model, make_batch(step), loss)
    before = model[2].weight.detach().clone()
    model[2].weight.requires_grad_(True)
    for step in range(4, 20):
        take(optimizer, model, make_batch(step), loss)
    assert not torch.equal(model[2].weight, before)


def test_toggling_a_whole_model_off_and_on_again_changes_nothing_that_is_trained():
    """As adversarial training does with the network that is not trained."""
    runs = []
    for toggles in (False, True):
        model, make_batch, loss = PROBLEMS["mlp"]()
        optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
        for step in range(10):
            if toggles:
                model.requires_grad_(False)
                loss(model, make_batch(step))
                model.requires_grad_(True)
            take(optimizer, model, make_batch(step), loss)
        runs.append(values(model))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


# full()


def test_full_makes_everything_trainable_nests_and_restores():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    outside = flags(model)
    assert outside == {name: name.startswith("4") for name in outside}
    with optimizer.full():
        assert optimizer.active == (0, 1, 2)
        with optimizer.full():
            assert all(flags(model).values())
        assert all(flags(model).values())
        assert len(leaves_of_graph(loss(model, make_batch(1)))) == 6
    assert flags(model) == outside
    assert optimizer.active == (2,)


def test_full_restores_when_its_body_raises():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    outside = flags(model)

    def body():
        with optimizer.full(), optimizer.full():
            raise KeyError("x")

    with pytest.raises(KeyError):
        body()
    assert flags(model) == outside
    assert optimizer.active == (2,)
    take(optimizer, model, make_batch(1), loss)


def test_a_step_inside_full_moves_everything():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    before = values(model)
    with optimizer.full():
        take(optimizer, model, make_batch(1), loss)
    assert all(not torch.equal(before[name], value) for name, value in values(model).items())
    assert optimizer.active == (2,)
    assert flags(model)["0.weight"] is False


# A second optimizer


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "duplicate",
    [lambda model: model, copy.deepcopy, saved_and_loaded, copy.copy],
    ids=["itself", "deepcopy", "torch.save", "copy"],
)
def test_a_second_optimizer_on_a_model_in_mid_training_sees_everything_trainable(duplicate):
    model, make_batch, loss, optimizer = started("mlp", (2,))
    assert not model[0].weight.requires_grad
    twin = duplicate(model)
    second = DropMuon(twin, lr=0.01, sampler=samplers.Serial())
    assert second.layers == optimizer.layers
    assert all(flags(twin).values())
    assert moves_every_layer(second, twin, make_batch, loss)


def test_a_second_optimizer_leaves_what_the_user_froze():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[2].requires_grad_(False)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
    for step in range(3):
        take(optimizer, model, make_batch(step), loss)
    assert DropMuon(model).layers == ("0", "4")
    assert model[2].weight.requires_grad is False


# The end of an optimizer


def test_flags_are_the_users_again_when_the_optimizer_is_gone():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[0].bias.requires_grad_(False)
    wished = flags(model)
    optimizer = DropMuon(model, lr=0.01, sampler=Always((2,)))
    take(optimizer, model, make_batch(0), loss)
    assert flags(model) != wished
    del optimizer
    gc.collect()
    assert flags(model) == wished
    assert all(not vars(p) for p in model.parameters())


def test_a_wish_made_after_a_group_was_added_outlives_the_optimizer():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    late = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer.add_param_group({"params": [("late", late)], "layer": "new"})
    with optimizer.full():
        model[0].weight.requires_grad_(False)
    take(optimizer, model, make_batch(1), lambda *given: loss(*given) + late.sum())
    del optimizer
    gc.collect()
    assert flags(model) == {name: name != "0.weight" for name in flags(model)}


def test_two_optimizers_that_both_step_lose_no_layer_and_are_told() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        both = [DropMuon(model, lr=0.01, seed=seed) for seed in (1, 2)]
        for _ in range(70):
            for optimizer in both:
                model(torch.ones(3, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert any("another DropMuon freezes layers" in str(each.message) for each in told)
    for optimizer in both:
        assert min(optimizer.moves.values()) > 5, optimizer.moves
    del both, optimizer
    gc.collect()
    assert all(parameter.requires_grad for parameter in model.parameters())
