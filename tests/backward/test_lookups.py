"""An embedding that is tied to the head moves with it, and its look-up costs no backward."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, layer_groups, samplers
from tests.backward.tied_model import (
    TOKENS,
    equal,
    gradient,
    hooks,
    loss,
    of_the_head,
    step,
    tied,
)
from tests.contract.process_group import process_group
from tests.model.framework_models import tiny_model


def test_the_weight_belongs_to_the_head_and_the_table_says_so() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head", policy="muon")
    assert optimizer.layers == ("blocks.0", "blocks.1", "blocks.2", "head")
    text = optimizer.describe()
    assert "embedding, tied to the output layer" in text
    assert "'table' looks up 'head.weight': that part of its gradient is left out" in text
    assert "while 'blocks.0' is inactive" in text
    in_blocks = DropMuon(tied(), tied="head", by="block")
    assert in_blocks.layers == ("blocks.0", "blocks.1", "blocks.2", "head")


def test_the_gradient_is_that_of_the_head_above_the_lowest_cutoff_and_whole_at_it() -> None:
    model, plain = tied(), tied()
    optimizer = DropMuon(model, tied="head")
    whole = gradient(plain)
    assert torch.equal(gradient(model), whole)  # the first step is full
    for cutoff in (1, 2, 3):
        optimizer.activate(range(cutoff, 4))
        found = gradient(model)
        assert torch.equal(found, of_the_head(plain))
        assert not torch.equal(found, whole)
    optimizer.activate(range(4))
    assert torch.equal(gradient(model), whole)
    optimizer.activate([0, 3])
    assert torch.equal(gradient(model), whole)


def test_backward_stops_where_it_would_without_the_tie() -> None:
    def operations(model: nn.Module, optimizer: DropMuon) -> int:
        optimizer.activate([len(optimizer.layers) - 1])
        with FlopCounterMode(display=False) as counter:
            loss(model).backward()
        return int(counter.get_total_flops())

    model, free = tied(), tied()
    free.head.weight = nn.Parameter(free.head.weight.detach().clone())
    ours = operations(model, DropMuon(model, tied="head"))
    assert ours == operations(free, DropMuon(free))
    optimizer = DropMuon(model, tied="head")
    optimizer._lookups.close()
    with pytest.warns(UserWarning, match="backward goes on below its cutoff"):
        assert operations(model, optimizer) > ours


IDS = torch.arange(10).view(2, 5)
INPUTS: dict[str, tuple[str, dict[str, Tensor]]] = {
    "GPT-2": ("lm_head", {"input_ids": IDS, "labels": IDS}),
    "BERT for masked tokens": ("cls.predictions.decoder", {"input_ids": IDS, "labels": IDS}),
    "T5": ("lm_head", {"input_ids": IDS, "decoder_input_ids": IDS, "labels": IDS}),
    "Whisper": ("proj_out", {"input_features": torch.ones(2, 8, 32), "labels": IDS}),
}


@pytest.mark.parametrize("name", INPUTS)
def test_backward_of_a_real_model_stops_where_it_would_without_the_tie(name: str) -> None:
    """At every cutoff, with the same layers: those of the model without the tie, less its table."""
    head, inputs = INPUTS[name]
    model, free = tiny_model(name), tiny_model(name)
    free.get_submodule(head).weight = nn.Parameter(free.get_parameter(f"{head}.weight").detach())
    operations = []
    for each in (model, free):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # BERT also ties a bias
            optimizer = DropMuon(each, sampler=samplers.Progressive(), example=inputs)
        found: dict[str, int] = {}
        for cutoff in range(len(optimizer.layers)):
            optimizer.activate(range(cutoff, len(optimizer.layers)))
            with FlopCounterMode(display=False) as counter:
                each(**inputs).loss.backward()
            found[optimizer.layers[cutoff]] = counter.get_total_flops()
        operations.append(found)
    tied_to_head, apart = operations
    assert tied_to_head.items() <= apart.items()
    assert len(apart) - len(tied_to_head) <= 1
    assert min(tied_to_head.values()) < 0.7 * max(tied_to_head.values())


def test_full_opens_the_look_up_and_evaluation_does_not_change() -> None:
    model, plain = tied(), tied()
    optimizer = DropMuon(model, tied="head")
    optimizer.activate([3])
    assert torch.equal(model(TOKENS), plain(TOKENS))
    with torch.no_grad():
        assert torch.equal(model(TOKENS), plain(TOKENS))
    with optimizer.full():
        assert torch.equal(gradient(model), gradient(plain))
    assert torch.equal(gradient(model), of_the_head(plain))


@pytest.mark.parametrize("truncate", [False, "refresh"])
def test_nothing_is_left_out_where_all_gradients_are_computed_anyway(truncate: Any) -> None:
    model, plain = tied(), tied()
    optimizer = DropMuon(model, tied="head", truncate=truncate)
    optimizer.activate([3])
    assert torch.equal(gradient(model), gradient(plain))


def test_the_set_of_each_part_decides() -> None:
    model, plain = tied(), tied()
    shares = samplers.Shares([0.5, 0.5, 0.5, 1.0])
    optimizer = DropMuon(model, tied="head", sampler=shares, parts=2, full_start=False)
    both = (gradient(plain) + of_the_head(plain)) / 2
    seen = set()
    for _ in range(2):
        seen.add(optimizer.active)
        (loss(model) / 2).backward()
    assert seen == {(3,), (0, 1, 2, 3)}
    found = model.table.weight.grad
    assert found is not None
    torch.testing.assert_close(found, both)


def test_every_look_up_has_the_layer_of_its_own_place() -> None:
    """Registered first, the second table counts to the first block; an example shows its place."""
    model, plain = tied(twice=True), tied(twice=True)
    optimizer = DropMuon(model, tied="head", example=TOKENS)
    assert "'again' looks up 'head.weight'" in optimizer.describe()
    assert "while 'blocks.2' is inactive" in optimizer.describe()
    assert hooks(model) == 2
    whole = gradient(plain)
    optimizer.activate([2, 3])
    found = gradient(model)
    plain.table.register_forward_hook(lambda module, args, output: output.detach())
    assert torch.equal(found, gradient(plain))
    assert not torch.equal(found, whole)


def test_checkpointing_recomputes_with_the_gate_of_the_forward() -> None:
    plain, saving = tied(), tied(saving=True)
    pair = [DropMuon(model, tied="head", parts=2, sampler="uniform") for model in (plain, saving)]
    for _ in range(8):
        for model, optimizer in zip((plain, saving), pair, strict=True):
            for some in optimizer.split(TOKENS):
                loss(model, some).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert equal(plain, saving)


def test_several_updates_per_batch_recompute_what_the_moving_weight_feeds() -> None:
    model, plain = tied(), tied()
    optimizer = DropMuon(model, tied="head", updates_per_batch=2, full_start=False)
    optimizer.activate([2, 3])
    other = DropMuon(plain, tied="head", resample_every=2, full_start=False)
    other.activate([2, 3])

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return value

    with pytest.warns(UserWarning, match="recomputed in every update: they follow a look-up"):
        optimizer.step(closure)
    step(plain, other)
    other.activate([2, 3])
    step(plain, other)
    assert equal(model, plain)


def test_a_table_of_sparse_gradients_trains_with_the_head() -> None:
    """The head's part is dense, so the sum is."""
    model, plain = tied(sparse=True), tied()
    for each in (model, plain):
        optimizer = DropMuon(each, tied="head")
        for _ in range(6):
            step(each, optimizer)
    torch.testing.assert_close(model.table.weight, plain.table.weight)


def test_nothing_is_taken_for_a_stray() -> None:
    model = tied()
    optimizer = DropMuon(model, tied="head")
    for _ in range(30):  # warnings are errors
        step(model, optimizer)


def test_a_hook_of_the_user_sees_what_a_frozen_embedding_would_give() -> None:
    model, seen = tied(), []
    model.table.register_forward_hook(lambda module, args, out: seen.append(out.requires_grad))
    optimizer = DropMuon(model, tied="head")
    optimizer.activate([3])
    loss(model)
    assert seen == [False]


def test_a_frozen_tie_and_a_frozen_layer_beside_the_look_up_are_left_alone() -> None:
    model = tied()
    model.table.requires_grad_(False)
    assert hooks(model) == 0
    assert "looks up" not in DropMuon(model, tied="head").describe()
    model = tied()
    model.blocks[0].requires_grad_(False)
    optimizer = DropMuon(model, tied="head")
    assert "while 'blocks.1' is inactive" in optimizer.describe()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_models_train_as_eager_ones_do() -> None:
    torch._dynamo.reset()
    model, plain = tied(), tied()
    called = torch.compile(model, backend="aot_eager")
    ours, theirs = DropMuon(called, tied="head"), DropMuon(plain, tied="head")  # type: ignore[arg-type]
    for _ in range(10):
        loss(called).backward()  # type: ignore[arg-type]
        ours.step()
        ours.zero_grad()
        step(plain, theirs)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    torch._dynamo.reset()


def test_a_model_inside_ddp_trains_as_a_plain_one_does() -> None:
    model, plain = tied(), tied()
    with process_group():
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        ours, theirs = DropMuon(wrapped, tied="head"), DropMuon(plain, tied="head")
        for _ in range(8):
            step(wrapped, ours)
            step(plain, theirs)
    assert equal(model, plain)


def test_a_weight_that_is_not_looked_up_belongs_to_its_first_use_in_any_case() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    for choice in ("first", "head"):
        with pytest.warns(UserWarning, match=r"one tied parameter.*earliest use, '0.weight'"):
            optimizer = DropMuon(make(), tied=choice)
        assert "0.weight" in optimizer.param_groups[0]["param_names"]


def test_no_warning_where_the_weight_moves_with_the_head() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer_groups(tied(), tied="head")
