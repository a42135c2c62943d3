"""What a forward pass holds for backward is counted without holding it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dropmuon import DropMuon
from dropmuon.model.held import measure
from tests.model.framework_models import tiny_model
from tests.model.live_memory import Live, Stack

X = torch.ones(256, 8)


def saved_by(model: nn.Module, example: dict[str, Any]) -> int:
    """Return the bytes of all storages that a pass saves, all of them kept, without parameters."""
    kept, sizes = [], {}
    own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.append(tensor)
        if storage._cdata not in own:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(**example)
    assert outputs is not None
    return sum(sizes.values())


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5", "BERT"])
def test_what_real_models_save_is_counted_to_the_byte(name: str) -> None:
    model = tiny_model(name).train()
    tokens = torch.randint(3, 50, (3, 8))
    labels = torch.zeros(3, dtype=torch.int64) if name == "BERT" else tokens
    example = {"input_ids": tokens, "labels": labels}
    if name == "T5":
        example["decoder_input_ids"] = tokens
    held = measure(model, [], example)
    assert held.blocks == []
    assert held.peak(()) == saved_by(model, example) > 10_000


def test_counting_holds_nothing() -> None:
    model = Stack(6)
    with Live() as live:
        held = measure(model, model.blocks, X)
        assert live.bytes < held.peak(()) / 10


def test_blocks_come_in_order_of_their_calls() -> None:
    model = Stack(3)
    a, b, c = model.blocks
    model.blocks = nn.ModuleList([c, a, b, a])
    assert measure(model, [a, b, c], X).blocks == [c, a, b]


def test_a_block_that_is_called_twice_counts_twice() -> None:
    once, twice = Stack(1), Stack(1)
    twice.blocks.append(twice.blocks[0])
    (block,) = {*twice.blocks}
    more = measure(twice, [block], X).peak(()) - measure(once, once.blocks, X).peak(())
    assert more == sum(measure(once, once.blocks, X).stretches[1].saved.values())


def test_what_an_optimizer_has_frozen_counts_and_what_the_user_froze_does_not() -> None:
    whole = measure(Stack(4), [], X).peak(())
    drawn = Stack(4)
    optimizer = DropMuon(drawn, by="block")
    optimizer.activate([5])
    flags = [parameter.requires_grad for parameter in drawn.parameters()]
    assert measure(drawn, [], X).peak(()) == whole
    assert [parameter.requires_grad for parameter in drawn.parameters()] == flags
    assert sum(flags) == 2
    frozen = Stack(4)
    frozen.first.requires_grad_(False)
    frozen.blocks.requires_grad_(False)
    assert measure(frozen, [], X).peak(()) < whole / 4


def test_the_model_and_its_mode_are_left_as_they_were() -> None:
    model = Stack(2, dropout=0.5).eval()
    state = torch.get_rng_state()
    measure(model, model.blocks, X)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_buffers_that_a_block_writes_are_known_by_name() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    block.register_buffer("constant", torch.ones(3))
    held = measure(nn.Sequential(block, nn.Linear(8, 4)), [block], X)
    names = ("1.num_batches_tracked", "1.running_mean", "1.running_var")
    assert held.written == {block: names}
