"""Blocks are checkpointed as far as a budget needs, and nothing else changes."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, checkpoint_blocks, samplers
from tests.model.framework_models import tiny_model
from tests.model.live_memory import Stack

X = torch.ones(512, 8)
UNLIMITED = 10**12
RANDOM_STATE = torch.get_rng_state().nbytes


def smallest(model: nn.Module, example: Any) -> int:
    with pytest.raises(ValueError, match="budget must be at least") as caught:
        checkpoint_blocks(model, 1, example)
    return int(str(caught.value).split("at least ")[1].split()[0])


@pytest.mark.parametrize("outputs", [4, 100])
@pytest.mark.parametrize("room", [0.0, 0.3, 0.6, 1.0])
def test_no_moment_holds_more_than_the_budget(room: float, outputs: int) -> None:
    model = Stack(6, outputs=outputs)
    most, least = checkpoint_blocks(model, UNLIMITED, X).peak, smallest(model, X)
    budget = int(least + room * (most - least))
    found = checkpoint_blocks(model, budget, X)
    assert found.peak <= budget
    assert found.peak_without == most
    assert least < 0.6 * most
    unseen = X.nbytes + len(found.names) * RANDOM_STATE
    assert model.held_at_most(X) == pytest.approx(found.peak - unseen, abs=16)


def test_as_few_blocks_are_checkpointed_as_the_budget_needs() -> None:
    model = Stack(6)
    most = checkpoint_blocks(model, UNLIMITED, X).peak
    counts = []
    for budget in range(most, smallest(model, X), -(most // 40)):
        found = checkpoint_blocks(model, budget, X)
        counts.append(len(found.names))
        assert found.names == tuple(f"blocks.{i}" for i in range(len(found.names)))
        assert checkpoint_blocks(model, found.peak, X).names == found.names
    assert counts == sorted(counts)
    assert {*counts} == {0, 1, 2, 3, 4, 5, 6}


def test_the_smallest_budget_that_an_error_names_is_reached_and_none_below() -> None:
    model = Stack(4)
    least = smallest(model, X)
    assert checkpoint_blocks(model, least, X).peak == least
    with pytest.raises(ValueError, match=f"at least {least} bytes"):
        checkpoint_blocks(model, least - 1, X)


def operations(model: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        model(X).sum().backward()
    return int(counter.get_total_flops())


def test_operations_grow_by_the_forward_of_the_checkpointed_blocks() -> None:
    model = Stack(5)
    before = operations(model)
    budget = (smallest(model, X) + checkpoint_blocks(model, UNLIMITED, X).peak) // 2
    found = checkpoint_blocks(model, budget, X)
    block = 2 * 2 * X.numel() * 3 * 8
    assert 0 < len(found.names) < 5
    assert operations(model) == before + len(found.names) * block


def test_frozen_blocks_are_not_computed_once_more() -> None:
    plain, model = Stack(5), Stack(5)
    assert checkpoint_blocks(model, smallest(model, X), X).names[-1] == "blocks.4"
    block = 2 * 2 * X.numel() * 3 * 8
    optimizers = [DropMuon(each, by="block") for each in (plain, model)]
    for cutoff in range(7):
        for optimizer in optimizers:
            optimizer.activate(range(cutoff, 7))
        checkpointed_above = max(0, 5 - max(cutoff - 1, 0))
        assert operations(model) == operations(plain) + checkpointed_above * block


def test_passes_without_gradients_run_as_they_are() -> None:
    model = Stack(3)
    checkpoint_blocks(model, smallest(model, X), X)
    larger = torch.ones(2048, 8)
    with torch.no_grad():
        assert model(larger).shape == (2048, 4)  # and no warning of a larger input
    with torch.inference_mode():
        assert model(larger).shape == (2048, 4)


class Convolutions(nn.Module):
    """Blocks with batch norm, dropout and power iterations, given by keyword, that return pairs."""

    class Block(nn.Module):
        def __init__(self, *, normed: bool) -> None:
            super().__init__()
            inner = nn.Conv2d(4, 4, 3, padding=1)
            self.inner = spectral_norm(inner) if normed else inner
            self.norm, self.outer = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            hidden = nn.functional.dropout(torch.tanh(self.norm(self.inner(x))), 0.3, self.training)
            return x + scale * self.outer(hidden), {"hidden": hidden}

    def __init__(self, *, normed: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.blocks = nn.ModuleList(self.Block(normed=normed) for _ in range(4))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x, also = block(x, scale=self.scale)
            x = x + 0.1 * also["hidden"]
        found: Tensor = self.last(x.mean((2, 3)))
        return found


def tokens(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(3, 50, (4, 8), generator=generator)
    return {"input_ids": found, "labels": found}


def pairs(seed: int) -> dict[str, Any]:
    found = tokens(seed)
    return {**found, "decoder_input_ids": found["labels"], "use_cache": False}


def images(seed: int) -> dict[str, Tensor]:
    return {"x": torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(seed))}


def real(name: str) -> nn.Module:
    model = tiny_model(name)
    model.config.use_cache = False
    return model


CASES: dict[str, tuple[Any, Any]] = {
    "batch norm": (Convolutions, images),
    "GPT-2": (partial(real, "GPT-2"), tokens),
    "Llama": (partial(real, "Llama"), tokens),
    "T5": (partial(real, "T5"), pairs),
}


def trained(model: nn.Module, batch: Any, parts: int) -> dict[str, Tensor]:
    """Return the state of a model after a few steps, and that of the generator."""
    sampler = samplers.Progressive()
    model.train()
    torch.manual_seed(1)
    with DropMuon(model, lr=0.02, by="block", sampler=sampler, parts=parts, tied="first") as own:
        for step in range(6):
            for part in range(parts):
                found = model(**batch(step * parts + part))
                loss = found.square().mean() if isinstance(found, Tensor) else found.loss
                (loss / parts).backward()
            own.step()
            own.zero_grad()
    return {**model.state_dict(), "generator": torch.get_rng_state()}


@pytest.mark.filterwarnings("ignore:.* are one tied parameter")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_bit_for_bit(case: str, parts: int) -> None:
    make, batch = CASES[case]
    plain = make()
    saving = copy.deepcopy(plain)
    found = checkpoint_blocks(saving, smallest(saving, batch(0)), batch(0))
    assert found.names
    ours, theirs = trained(saving, batch, parts), trained(plain, batch, parts)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_blocks_run_as_before_after_a_removal() -> None:
    model = Stack(3)
    before = operations(model)
    with checkpoint_blocks(model, smallest(model, X), X) as found:
        assert operations(model) > before
    assert operations(model) == before
    assert not any("forward" in vars(block) for block in model.blocks)
    found.remove()


def test_a_forward_of_the_block_itself_is_used_and_given_back() -> None:
    model, calls = Stack(2), []
    block = model.blocks[0]
    original = block.forward

    def own(x: Tensor) -> Tensor:
        calls.append(x)
        found: Tensor = original(x)
        return found

    vars(block)["forward"] = own
    with checkpoint_blocks(model, smallest(model, X), X) as found:
        assert found.names == ("blocks.0", "blocks.1")
        calls.clear()
        model(X).sum().backward()
        assert len(calls) == 2
    assert vars(block)["forward"] is own


def test_what_was_wrapped_since_does_nothing_after_a_removal() -> None:
    model = Stack(3)
    before = operations(model)
    found = checkpoint_blocks(model, smallest(model, X), X)
    inner = vars(model.blocks[0])["forward"]
    vars(model.blocks[0])["forward"] = partial(inner)
    found.remove()
    assert operations(model) == before


def test_a_second_call_replaces_the_first_and_a_failed_one_does_not() -> None:
    model = Stack(5)
    before = operations(model)
    least = smallest(model, X)
    first = checkpoint_blocks(model, least, X)
    after = operations(model)
    assert smallest(model, X) == least
    assert operations(model) == after
    assert checkpoint_blocks(model, UNLIMITED, X).peak_without == first.peak_without
    assert operations(model) == before


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["copy", "pickle"],
)
def test_copies_are_checkpointed_and_apart(copied: Any) -> None:
    model = Convolutions(normed=False)  # torch refuses to pickle parametrizations
    example = images(0)
    found = checkpoint_blocks(model, smallest(model, example), example)
    other = copied(model)
    found.remove()
    for own in (*model.blocks, *other.blocks):
        own.norm.running_mean.zero_()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    other(**example).sum().backward()
    assert all(parameter.grad is not None for parameter in other.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(block.norm.running_mean.count_nonzero() == 4 for block in other.blocks)
    assert all(block.norm.running_mean.count_nonzero() == 0 for block in model.blocks)


def test_a_backward_may_be_repeated() -> None:
    model = Convolutions()
    example = images(0)
    checkpoint_blocks(model, smallest(model, example), example)
    loss = model(**example).square().sum()
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in model.parameters()]
    loss.backward()
    both = zip(first, model.parameters(), strict=True)
    assert all(torch.equal(2 * one, cast(Tensor, parameter.grad)) for one, parameter in both)


def test_a_larger_input_than_the_example_is_told_once() -> None:
    model = Stack(3)
    checkpoint_blocks(model, smallest(model, X), X)
    with pytest.warns(UserWarning, match="of 8192 elements, and 4096 in the example") as caught:
        model(torch.ones(1024, 8))
    model(torch.ones(1024, 8))
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_cache_is_refused_before_training_and_in_it(name: str) -> None:
    model = tiny_model(name)
    example = tokens(0)
    budget = smallest(model, example)
    with pytest.raises(
        ValueError, match=r"got (past_key_values|DynamicCache), which they would fill twice"
    ):
        checkpoint_blocks(model, budget, example)
    assert checkpoint_blocks(model, UNLIMITED, example).names == ()
    assert checkpoint_blocks(model, budget, {**example, "use_cache": False}).names
    with pytest.raises(ValueError, match="use_cache=False"):
        model.train()(**example)


def test_layers_of_ones_own_are_checkpointed_too() -> None:
    model = Stack(4)
    found = checkpoint_blocks(model, smallest(model, X), X, by=lambda name, _: name[:8])
    assert found.names == tuple(f"blocks.{i}" for i in range(4))
