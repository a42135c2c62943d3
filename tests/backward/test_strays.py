"""Gradients that start below the cutoff are told, once, with what causes them."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, samplers
from dropmuon.backward.strays import StrayGradients, order_matters


class Text(nn.Module):
    """An embedding and three linear maps, of which the last is registered first if `mixed`."""

    def __init__(self, *, mixed: bool = False) -> None:
        super().__init__()
        if mixed:
            self.last = nn.Linear(4, 4)
        self.table = nn.Embedding(5, 4)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        if not mixed:
            self.last = nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.last(self.two(torch.relu(self.one(self.table(tokens)))))
        return found


class Twice(nn.Module):
    """The first map is used again as the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.one(self.two(self.one(x)))
        return found


TOKENS = torch.tensor([0, 3, 1])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def train(model: nn.Module, optimizer: DropMuon, steps: int, x: Tensor = TOKENS) -> list[str]:
    """Take steps, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [str(each.message) for each in caught]


def hooks(model: nn.Module) -> int:
    """The hooks that watch a model for strays; others count its operations in the first step."""
    found = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    return sum(type(hook).__module__ == StrayGradients.__module__ for hook in found)


def test_a_model_as_it_should_be_is_watched_for_a_while_only() -> None:
    model = Text()
    optimizer = DropMuon(model)
    assert hooks(model) == 4
    assert train(model, optimizer, 30) == []
    assert hooks(model) == 0


def test_a_hook_that_needs_gradients_is_told_once_and_changes_no_step() -> None:
    plain, model = Text(), Text()
    model.load_state_dict(plain.state_dict())
    train(plain, DropMuon(plain), 12)
    model.table.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
    (message,) = train(model, DropMuon(model), 12)
    assert "'one' and all before it are frozen, but its input needs a gradient" in message
    assert "disable_input_require_grads()" in message
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_an_input_that_needs_gradients_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    (message,) = train(model, DropMuon(model), 20, torch.ones(2, 4, requires_grad=True))
    assert "'0' and all before it are frozen" in message


def test_layers_in_another_order_than_that_of_execution_are_named() -> None:
    model = Text(mixed=True)
    optimizer = DropMuon(model)
    (message,) = train(model, optimizer, 12)
    assert "'last'" in message
    assert "pass example=" in message
    ordered = Text(mixed=True)
    assert train(ordered, DropMuon(ordered, example=TOKENS), 20) == []


@pytest.mark.parametrize("sampler", [samplers.Serial(), samplers.Nice(2)])
def test_no_order_is_asked_for_where_none_saves_more_than_another(
    sampler: samplers.Sampler,
) -> None:
    model = Text(mixed=True)
    assert train(model, DropMuon(model, sampler=sampler), 40) == []


@pytest.mark.parametrize(
    "sampler", [samplers.Partition.contiguous(4, 2), samplers.Partition([[0, 3], [1, 2]])]
)
def test_order_counts_for_blocks_of_several_layers_though_equally_likely(
    sampler: samplers.Sampler,
) -> None:
    model = Text(mixed=True)
    (message,) = train(model, DropMuon(model, sampler=sampler), 20)
    assert "pass example=" in message
    ordered = Text(mixed=True)
    assert train(ordered, DropMuon(ordered, sampler=sampler, example=TOKENS), 20) == []


def test_sets_that_are_too_many_to_list_are_told_by_how_often_layers_move() -> None:
    assert not order_matters(samplers.Nice(3), 100)
    assert not order_matters(samplers.RandomSubset(), 40)
    assert not order_matters(samplers.RandomSubset(), 6)
    assert order_matters(samplers.Full(), 4)
    assert order_matters(samplers.Arbitrary({(0, 1): 0.5, (2, 3): 0.5}), 4)
    assert order_matters(samplers.Submodel(2), 4)


def test_a_hook_is_told_where_no_order_is_asked_for() -> None:
    model = Text(mixed=True)
    model.table.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
    (message,) = train(model, DropMuon(model, sampler=samplers.Serial()), 40)
    assert "'one' and all before it are frozen" in message


def test_order_counts_for_shares_that_adapt() -> None:
    model = Text(mixed=True)
    optimizer = DropMuon(model, sampler="adaptive", parts=4)
    optimizer.activate([1, 2, 3])
    messages = train(model, optimizer, 1)
    assert any("pass example=" in message for message in messages)


def test_a_module_that_is_used_again_above_the_cutoff_is_no_stray() -> None:
    model = Twice()
    assert train(model, DropMuon(model), 20, torch.ones(2, 4)) == []


def test_evaluation_in_between_is_not_looked_at() -> None:
    model = Text()
    optimizer = DropMuon(model)
    train(model, optimizer, 1)
    with torch.no_grad():
        model(TOKENS)
    assert train(model, optimizer, 20) == []


@pytest.mark.parametrize("settings", [{"sampler": "full"}, {"truncate": False}])
def test_nothing_is_watched_where_nothing_is_truncated(settings: dict[str, object]) -> None:
    model = Text()
    DropMuon(model, **settings)  # type: ignore[arg-type]
    assert hooks(model) == 0


def test_a_watched_model_can_be_copied_and_pickled() -> None:
    model = Text()
    optimizer = DropMuon(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(TOKENS), model(TOKENS))
    both = copy.deepcopy((model, optimizer))
    assert train(*both, 20) == []


def test_the_hooks_go_with_the_optimizer() -> None:
    model = Text()
    DropMuon(model)
    assert hooks(model) == 0
    optimizer = DropMuon(model)
    more = ("more.weight", nn.Parameter(torch.ones(3)))
    optimizer.add_param_group({"params": [more], "layer": "more"})
    assert hooks(model) == 4
