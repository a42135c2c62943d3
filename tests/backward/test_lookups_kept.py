"""Look-ups of a tied weight survive groups, copies, releases and saved states."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, layer_groups
from tests.backward.tied_model import (
    equal,
    gradient,
    hooks,
    of_the_head,
    step,
    tied,
)


def test_groups_carry_the_look_ups() -> None:
    model, plain = tied(), tied()
    groups = layer_groups(model, tied="head")
    assert hooks(model) == 0
    ours, theirs = DropMuon(groups), DropMuon(plain, tied="head")
    assert ours.describe().splitlines()[-1] == theirs.describe().splitlines()[-1]
    for _ in range(8):
        step(model, ours)
        step(plain, theirs)
    assert equal(model, plain)


def test_copies_of_model_and_optimizer_together_train_alike_and_apart() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head")
    for _ in range(3):
        step(model, optimizer)
    optimizer.activate([3])
    pairs = [
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((optimizer, model)))[::-1],
    ]
    for other, its in pairs:
        assert torch.equal(gradient(other), of_the_head(other))
        with its.full():
            assert not torch.equal(gradient(other), of_the_head(other))
        assert torch.equal(gradient(model), of_the_head(model))
        extra = ("extra.weight", nn.Parameter(torch.ones(3)))
        its.add_param_group({"params": [extra], "layer": "extra"})
        its.activate([3])
        assert torch.equal(gradient(other), of_the_head(other))
        its.activate(range(4))
        step(other, its)
        its.activate([3])
    for _ in range(8):
        step(model, optimizer)


def test_a_copy_of_the_model_alone_is_a_plain_model() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head")
    optimizer.activate([3])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not torch.equal(gradient(other.requires_grad_(True)), of_the_head(other))


def test_the_gates_go_with_the_optimizer() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head")
    optimizer.activate([3])
    assert hooks(model) == 1
    del optimizer
    gc.collect()
    assert hooks(model) == 0
    assert torch.equal(gradient(model), gradient(tied()))


def test_a_release_removes_the_gates_and_a_block_brings_them_back() -> None:
    model, whole = tied(), tied()
    optimizer = DropMuon(model, tied="head")
    optimizer.activate([3])
    for _ in range(2):
        optimizer.release()
        assert hooks(model) == 0
        assert torch.equal(gradient(model), gradient(whole))
        assert "looks up" in optimizer.describe()
        with optimizer:
            assert hooks(model) == 1
            assert torch.equal(gradient(model), of_the_head(model))
            optimizer.activate([0, 3])
            assert torch.equal(gradient(model), gradient(whole))
            optimizer.activate([3])
    assert hooks(model) == 0


def test_nothing_that_happens_while_released_brings_the_gates_back() -> None:
    model = tied()
    model.blocks[0].requires_grad_(False)
    optimizer = DropMuon(model, tied="head")
    state = optimizer.state_dict()
    optimizer.release()
    optimizer.load_state_dict(state)
    model.blocks[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model.blocks[0].parameters())})
    assert hooks(model) == 0
    with optimizer:
        assert hooks(model) == 1
        optimizer.activate([1, 2, 3])
        assert torch.equal(gradient(model), of_the_head(model))


def test_a_copy_of_model_and_optimizer_can_be_released_and_used_again() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head")
    optimizer.activate([3])
    twin, second = copy.deepcopy((model, optimizer))
    second.release()
    assert torch.equal(gradient(twin), gradient(tied()))
    assert torch.equal(gradient(model), of_the_head(model))
    with second:
        assert torch.equal(gradient(twin), of_the_head(twin))


def test_a_copy_of_a_released_pair_is_used_again_with_its_gates() -> None:
    model = tied()
    optimizer = DropMuon(model, lr=0.02)
    step(model, optimizer)
    optimizer.release()
    other, copied = copy.deepcopy((model, optimizer))
    with optimizer, copied:
        for _ in range(8):
            step(model, optimizer)
            step(other, copied)
            assert hooks(other) == hooks(model) == 1
    assert hooks(other) == 0
    assert torch.equal(other.table.weight, model.table.weight)


@pytest.mark.parametrize("first", ["optimizer", "pickle"])
def test_a_copy_that_cannot_know_its_look_ups_says_so(first: str) -> None:
    model = tied()
    optimizer = DropMuon(model, lr=0.02)
    optimizer.release()
    pair = (optimizer, model)
    copied, _ = copy.deepcopy(pair) if first == "optimizer" else pickle.loads(pickle.dumps(pair))
    with pytest.warns(UserWarning, match=r"'table' looks up 'head.weight', .* make the optimizer"):
        copied.__enter__()


@pytest.mark.parametrize("as_groups", [False, True])
def test_parameters_that_are_found_in_a_model_keep_their_look_ups(as_groups: bool) -> None:
    model = tied()
    params: Any = list(model.parameters())
    if as_groups:
        matrices = [p for p in params if p.ndim > 1]
        vectors = [p for p in params if p.ndim == 1]
        params = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]
    optimizer = DropMuon(params, model=model)
    assert optimizer.layers == DropMuon(tied()).layers
    assert sum("lookups" in group for group in optimizer.param_groups) == 1
    optimizer.activate([1, 2, 3])
    assert torch.equal(gradient(model), of_the_head(model))
    again = DropMuon(layer_groups(model), model=model)
    assert again.describe().count("looks up") == hooks(model) == 1
    other = tied()
    with pytest.warns(UserWarning, match="one tied parameter"):
        first = DropMuon(other.parameters(), model=other, tied="first")
    assert first.layers[0] == "table"
    assert hooks(other) == 0


def test_a_look_up_follows_layers_that_are_added_below_its_own() -> None:
    model = tied()
    model.blocks[0].requires_grad_(False)
    optimizer = DropMuon(model)
    assert "while 'blocks.1' is inactive" in optimizer.describe()
    model.blocks[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model.blocks[0].parameters())})
    assert optimizer.layers == ("blocks.0", "blocks.1", "blocks.2", "head")
    assert "while 'blocks.0' is inactive" in optimizer.describe()
    optimizer.activate([1, 2, 3])
    assert torch.equal(gradient(model), of_the_head(model))
    optimizer.activate([0, 1, 2, 3])
    assert torch.equal(gradient(model), gradient(tied()))


def test_a_second_optimizer_takes_the_gate_over() -> None:
    model = tied()
    first = DropMuon(model, tied="head")
    first.activate([3])
    second = DropMuon(model, tied="head")
    assert hooks(model) == 1
    assert torch.equal(gradient(model), gradient(tied()))
    second.activate([3])
    assert torch.equal(gradient(model), of_the_head(model))
    del first
    gc.collect()
    assert torch.equal(gradient(model), of_the_head(model))


def test_a_resumed_run_equals_an_unbroken_one() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head")
    for _ in range(4):
        step(model, optimizer)
    other = tied()
    other.load_state_dict(model.state_dict())
    state = pickle.loads(pickle.dumps(optimizer.state_dict()))
    assert not any(group.get("lookups") for group in state["param_groups"])
    resumed = DropMuon(other, tied="head")
    resumed.load_state_dict(state)
    assert sum("lookups" in group for group in resumed.param_groups) == 1
    for _ in range(8):
        step(model, optimizer)
        step(other, resumed)
    assert equal(model, other)
    more = ("more.weight", nn.Parameter(torch.ones(3)))
    resumed.add_param_group({"params": [more], "layer": "more"})
    assert hooks(other) == 1
    assert "looks up" in resumed.describe()


def test_a_state_of_the_other_choice_is_refused_with_the_remedy() -> None:
    with pytest.warns(UserWarning, match="one tied parameter"):
        state = DropMuon(tied(), tied="first").state_dict()
    with pytest.warns(UserWarning, match="one tied parameter"):
        DropMuon(tied(), tied="first").load_state_dict(state)
    with pytest.raises(ValueError, match="the same model, by, example and tied"):
        DropMuon(tied(), tied="head").load_state_dict(state)
