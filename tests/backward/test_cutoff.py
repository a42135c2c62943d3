"""What backward skips: all below the cutoff, and nothing of the active gradients."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from dropmuon import DropMuon, samplers
from tests.backward.frozen_problems import leaves_of_graph, parameters_of, started, take, values
from tests.models import PROBLEMS

MODELS = ["mlp", "cnn", "transformer"]
COUNTS = {name: len(DropMuon(PROBLEMS[name]()[0]).layers) for name in (*MODELS, "residual", "unet")}
CUTOFFS = [(name, cutoff) for name in MODELS for cutoff in range(COUNTS[name])]


# Below the cutoff there is nothing


@pytest.mark.parametrize(("name", "cutoff"), CUTOFFS)
def test_the_graph_holds_the_active_layers_and_no_other(name, cutoff):
    active = tuple(range(cutoff, COUNTS[name]))
    model, make_batch, loss, optimizer = started(name, active)
    value = loss(model, make_batch(1))
    layers = parameters_of(optimizer)
    assert leaves_of_graph(value) == {id(p) for i in active for p in layers[i]}
    value.backward()
    for i, members in enumerate(layers):
        for parameter in members:
            assert (parameter.grad is not None) == (i in active), optimizer.layers[i]
            assert parameter.requires_grad == (i in active)


@pytest.mark.parametrize(("name", "cutoff"), [(n, c) for n, c in CUTOFFS if n in ("mlp", "cnn")])
def test_activations_below_the_cutoff_have_no_history(name, cutoff):
    model, make_batch, loss, optimizer = started(name, tuple(range(cutoff, COUNTS[name])))
    border = list(model).index(model.get_submodule(optimizer.layers[cutoff]))
    seen = {}

    def note(place):
        return lambda module, args, output: seen.__setitem__(place, output)

    for place, module in enumerate(model):
        module.register_forward_hook(note(place))
    loss(model, make_batch(1))
    assert len(seen) == len(model)
    for place, output in seen.items():
        if place < border:
            assert output.requires_grad is False
            assert output.grad_fn is None
        else:
            assert output.grad_fn is not None


def test_activations_of_a_transformer_below_the_cutoff_have_no_history():
    names = DropMuon(PROBLEMS["transformer"]()[0]).layers
    cutoff = names.index("blocks.1.norm1")
    model, make_batch, loss, _ = started("transformer", tuple(range(cutoff, len(names))))
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, args, output, name=name: seen.__setitem__(name, output)
        )
    loss(model, make_batch(1))
    below = [name for name in seen if name.startswith(("blocks.0", "token", "position"))]
    assert len(below) > 5
    assert all(seen[name].grad_fn is None and not seen[name].requires_grad for name in below)
    assert all(seen[name].grad_fn is not None for name in ("blocks.1", "head"))


# Saved memory


@contextmanager
def saved_bytes(model):
    """Count the bytes that the graph saves in tensors that are no parameters or buffers."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    count = {}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield count
    count["bytes"] = sum(found.values())


class Detaching(nn.Sequential):
    """A sequence with a detach before one item, placed by hand, and no_grad below it."""

    cutoff = 0

    def forward(self, x):
        with torch.no_grad():
            for module in list(self)[: self.cutoff]:
                x = module(x)
        x = x.detach()
        for module in list(self)[self.cutoff :]:
            x = module(x)
        return x


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_saved_bytes_fall_with_the_cutoff_and_equal_those_of_a_detach(name):
    counts = []
    for cutoff in range(COUNTS[name]):
        model, make_batch, loss, optimizer = started(name, tuple(range(cutoff, COUNTS[name])))
        batch = make_batch(1)
        with saved_bytes(model) as ours:
            loss(model, batch)
        by_hand = Detaching(*model)
        by_hand.cutoff = int(optimizer.layers[cutoff])
        with saved_bytes(by_hand) as theirs:
            loss(by_hand, batch)
        assert ours == theirs
        counts.append(ours["bytes"])
    assert sorted(set(counts), reverse=True) == counts


def test_saved_bytes_of_a_transformer_fall_with_every_block():
    names = DropMuon(PROBLEMS["transformer"]()[0], by="block").layers
    counts = []
    for cutoff in range(len(names)):
        model, make_batch, loss, _ = started(
            "transformer", tuple(range(cutoff, len(names))), by="block"
        )
        with saved_bytes(model) as count:
            loss(model, make_batch(1))
        counts.append(count["bytes"])
    assert all(above < below for below, above in pairwise(counts))
    assert counts[-1] < counts[0] / 4


# Above the cutoff


SETS = {
    "serial": samplers.Serial(),
    "nice": samplers.Nice(2),
    "partition": samplers.Partition([(0, 2), (1,)]),
    "progressive": samplers.Progressive(),
}


@pytest.mark.parametrize("sampler", SETS.values(), ids=SETS)
@pytest.mark.parametrize("name", ["mlp"])
def test_above_the_cutoff_inactive_layers_get_no_gradient_and_do_not_move(name, sampler):
    model, make_batch, loss = PROBLEMS[name]()
    optimizer = DropMuon(model, lr=0.01, sampler=sampler)
    layers = parameters_of(optimizer)
    drawn = set()
    for step in range(25):
        active, before = optimizer.active, values(model)
        loss(model, make_batch(step)).backward()
        for i, members in enumerate(layers):
            assert all((p.grad is not None) == (i in active) for p in members)
        optimizer.step()
        optimizer.zero_grad()
        for key, value in model.state_dict().items():
            moved = not torch.equal(value, before[key])
            assert moved == (optimizer.layers.index(key.split(".")[0]) in active)
        drawn.add(active)
    assert drawn == {(0, 1, 2), *sampler.support(3)}


# Active gradients are exact


class Branches(nn.Module):
    """Three branches of unequal depth, summed, with one fed by another."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.left = nn.Linear(6, 6)
        self.right = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.direct = nn.Linear(5, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        stem = torch.tanh(self.stem(x))
        left = self.left(stem)
        return self.head(left + self.right(stem * left) + self.direct(x))


def branches():
    torch.manual_seed(3)
    _, make_batch, loss = PROBLEMS["mlp"]()
    return Branches().double(), make_batch, loss


EXACT = {**{name: PROBLEMS[name] for name in (*MODELS, "residual", "unet")}, "branches": branches}


@pytest.mark.parametrize("order", ["forward", "wrong"])
@pytest.mark.parametrize("name", EXACT)
def test_gradients_of_active_layers_equal_those_of_a_full_backward(name, order):
    model, make_batch, loss = EXACT[name]()
    owners = list(DropMuon(model).layers)
    if order == "wrong":
        np.random.default_rng(0).shuffle(owners)
    rank = {owner: n for n, owner in enumerate(owners)}
    by_owner = sorted(model.named_parameters(), key=lambda item: rank[item[0].rpartition(".")[0]])
    optimizer = DropMuon(by_owner, lr=0.01, sampler=samplers.Nice(2), policy="euclidean", seed=1)
    assert list(optimizer.layers) == owners
    for step in range(8):
        batch = make_batch(step)
        twin = copy.deepcopy(model).requires_grad_(True)
        loss(twin, batch).backward()
        loss(model, batch).backward()
        active = {optimizer.layers[i] for i in optimizer.active}
        for (key, mine), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            if key.rpartition(".")[0] in active:
                assert torch.equal(mine.grad, other.grad), key
            else:
                assert mine.grad is None, key
        optimizer.step()
        optimizer.zero_grad()


# Without truncation


def test_without_truncation_all_gradients_are_computed_and_only_active_layers_move():
    model, make_batch, loss = PROBLEMS["mlp"]()
    truncated = copy.deepcopy(model)
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), truncate=False)
    twin = DropMuon(truncated, lr=0.01, sampler=samplers.Serial())
    for step in range(10):
        active, before = optimizer.active, values(model)
        loss(model, make_batch(step)).backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        take(twin, truncated, make_batch(step), loss)
        for key, value in model.state_dict().items():
            held = optimizer.layers.index(key.split(".")[0]) not in active
            assert torch.equal(value, before[key]) == held
            assert torch.equal(value, truncated.state_dict()[key])
