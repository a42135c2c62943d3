"""The end of training: all flags are given back, for a second optimizer or another use."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import flags, started, take, values
from tests.fixed_set import Always
from tests.models import PROBLEMS


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def test_a_second_optimizer_sees_everything_after_a_release():
    model, _, _, optimizer = started("mlp", (2,))
    assert len(trainable(model)) == 2
    optimizer.release()
    assert len(trainable(model)) == 6
    assert all(not vars(p) for p in model.parameters())
    assert not any("_dropmuon_frozen" in vars(module) for module in model.modules())


def test_a_release_leaves_what_the_user_froze_and_may_be_repeated():
    model, make_batch, loss = PROBLEMS["mlp"]()
    model[0].bias.requires_grad_(False)
    optimizer = DropMuon(model, lr=0.01, sampler=Always((2,)))
    take(optimizer, model, make_batch(0), loss)
    with optimizer.full():
        model[2].weight.requires_grad_(False)
    wished = {name: name not in ("0.bias", "2.weight") for name in flags(model)}
    for _ in range(2):
        optimizer.release()
        assert flags(model) == wished
    model[4].requires_grad_(False)
    optimizer.release()
    assert not model[4].weight.requires_grad


def test_a_context_manager_releases_at_its_end_and_when_its_body_raises():
    model, make_batch, loss = PROBLEMS["mlp"]()
    with DropMuon(model, lr=0.01, sampler=Always((2,))) as optimizer:
        take(optimizer, model, make_batch(0), loss)
        assert len(trainable(model)) == 2
    assert len(trainable(model)) == 6

    def body():
        with optimizer:
            assert len(trainable(model)) == 2
            raise KeyError("x")

    with pytest.raises(KeyError):
        body()
    assert len(trainable(model)) == 6


def test_a_step_after_a_release_is_an_error_that_moves_nothing():
    model, make_batch, loss, optimizer = started("mlp", (2,))
    optimizer.release()
    loss(model, make_batch(1)).backward()
    before, active = values(model), optimizer.active
    with pytest.raises(RuntimeError, match="inside of 'with optimizer:'"):
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in values(model).items())
    assert optimizer.active == active


@pytest.mark.parametrize("parts", [1, 2])
def test_training_in_two_blocks_equals_training_in_one(parts):
    ends = []
    for blocks in ([range(8)], [range(4), range(4, 8)]):
        model, make_batch, loss = PROBLEMS["mlp"]()
        optimizer = DropMuon(model, lr=0.01, parts=parts)
        for steps in blocks:
            with optimizer:
                for step in steps:
                    for x, y in optimizer.split(*make_batch(step)):
                        loss(model, (x, y)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            loss(model, make_batch(9)).backward()  # someone else's, while everything is released
            model.zero_grad()
        ends.append((optimizer.active, values(model)))
    assert ends[0][0] == ends[1][0]
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=0, atol=0)


def test_gradients_are_nobody_else_s_after_a_release_of_parts():
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.01, parts=2, sampler=samplers.Serial())
    for step in range(4):
        loss(model, make_batch(step)).backward()
        optimizer.step() if step % 2 else None
    optimizer.zero_grad()
    optimizer.release()
    plain = copy.deepcopy(model)
    for each in (model, plain):
        loss(each, make_batch(7)).backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=0)
    assert len(trainable(model)) == 6


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_what_is_released_is_released(duplicate):
    model, make_batch, loss = PROBLEMS["mlp"]()
    optimizer = DropMuon(model, lr=0.01, parts=2, sampler=samplers.Serial([0.25, 0.25, 0.5]))
    for step in range(4):
        loss(model, make_batch(step)).backward()
        optimizer.step() if step % 2 else None
    optimizer.zero_grad()
    optimizer.release()
    (twin, second), plain = duplicate((model, optimizer)), copy.deepcopy(model)
    for each in (twin, plain):
        loss(each, make_batch(7)).backward()
    for mine, other in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=0)
    assert len(trainable(twin)) == 6
    with second:
        assert len(trainable(twin)) == 2


def test_a_state_that_is_loaded_after_a_release_freezes_nothing_until_it_is_used():
    model, make_batch, loss, optimizer = started("mlp", (1,))
    state = optimizer.state_dict()
    optimizer.release()
    optimizer.load_state_dict(state)
    optimizer.activate([1])
    with optimizer.full():
        pass
    assert len(trainable(model)) == 6
    with optimizer:
        assert len(trainable(model)) == 2
        take(optimizer, model, make_batch(1), loss)


def test_an_optimizer_that_is_gone_after_its_release_changes_no_flag():
    model, _, _, optimizer = started("mlp", (2,))
    optimizer.release()
    model[0].requires_grad_(False)
    wished = flags(model)
    del optimizer
    assert flags(model) == wished
