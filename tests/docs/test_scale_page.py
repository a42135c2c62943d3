"""The tables of docs/scale.md are what the model computes, for models as they are."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import scale
from dropmuon import DropMuon, norms
from dropmuon.samplers.allocation import CAUTION
from tests.docs.pages import ROOT, text_of

transformers = pytest.importorskip("transformers")

PAGE = "docs/scale.md"
BLOCKS, WIDTH, VOCABULARY, LENGTH, HEADS = 3, 16, 24, 10, 2
OURS = {
    "gpt2": scale.gpt2(BLOCKS, WIDTH, VOCABULARY, LENGTH),
    "llama": scale.llama(BLOCKS, WIDTH, 40, VOCABULARY, LENGTH),
}


def theirs(name: str) -> Any:
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=BLOCKS, n_embd=WIDTH, n_head=HEADS, n_positions=LENGTH, vocab_size=VOCABULARY
        )
        return transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager")
    config = transformers.LlamaConfig(
        num_hidden_layers=BLOCKS,
        hidden_size=WIDTH,
        intermediate_size=40,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=VOCABULARY,
    )
    return transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager")


def test_every_table_of_the_page_is_computed() -> None:
    computed = ["\n".join(lines) for _, lines in scale.tables()]
    page = text_of(PAGE)
    assert [table for table in computed if table not in page] == []
    rows = re.findall(r"^\|.*\d\.\d+ / .*$", page, re.M)
    assert len(rows) == 48
    assert [line for line in rows if not any(line in table for table in computed)] == []


def test_the_raw_output_is_that_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    scale.main([])
    assert capsys.readouterr().out == text_of("benchmarks/scale.txt")


def test_the_page_says_first_that_it_predicts_and_shows_the_figure() -> None:
    page = text_of(PAGE)
    assert "not measurements" in page.split("\n\n")[1]
    assert "](scale.svg)" in page
    assert (ROOT / "docs/scale.svg").is_file()


def test_the_caution_is_that_of_the_planner() -> None:
    assert scale.CAUTION == CAUTION


def test_the_models_have_as_many_parameters_as_published() -> None:
    assert [model.parameters for model in scale.MODELS] == [124439808, 1345423360, 6738415616]


@pytest.mark.parametrize("name", OURS)
def test_layers_hold_what_they_do_in_the_models_of_transformers(name: str) -> None:
    with DropMuon(theirs(name), by="block", policy="muon") as optimizer:
        members = list(optimizer.roster.members())
    found: Counter[tuple[int, bool]] = Counter()
    for member in members:
        by_muon = not isinstance(member.norm, norms.AdamW)
        found[member.layer, by_muon] += member.parameter.numel()
    expected: Counter[tuple[int, bool]] = Counter()
    for weight in OURS[name].weights:
        expected[weight.layer, weight.needs == "whole"] += weight.entries
    assert found == expected
    products = [weight.product for weight in OURS[name].weights if weight.needs == "whole"]
    assert sum(member.direction_cost for member in members) == sum(products)


@pytest.mark.parametrize("name", OURS)
def test_operations_are_those_that_torch_counts_at_every_cutoff(name: str) -> None:
    model, passes, every = theirs(name), OURS[name].passes, OURS[name].every
    batch = torch.randint(VOCABULARY, (2, LENGTH))
    with DropMuon(model, by="block", policy="muon") as optimizer:
        for cutoff in every:
            optimizer.activate(every[cutoff:])
            with FlopCounterMode(display=False) as counter:
                model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
            backward = passes.backward[cutoff:].sum() + passes.weight[cutoff:].sum()
            predicted = batch.numel() * (passes.forward.sum() + backward)
            assert counter.get_total_flops() == predicted
            model.zero_grad()
