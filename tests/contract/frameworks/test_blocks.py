"""Layers by block of real architectures."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from torch import Tensor, nn

from dropmuon import DropMuon
from tests.contract.frameworks.tiny_models import TINY, tiny

BLOCKS: dict[str, list[str]] = {
    "gpt2": ["transformer.h.* x3"],
    "llama": ["model.layers.* x3"],
    "mixtral": ["model.layers.* x2"],
    "bert": ["bert.encoder.layer.* x3"],
    "vit": ["vit.layers.* x3"],
    "t5": ["encoder.block.* x2", "decoder.block.* x3"],
    "bart": [
        *("model.encoder.layers.* x2", "model.decoder.embed_positions"),
        "model.decoder.layers.* x2",
    ],
    "whisper": [
        *("model.encoder.layers.* x2", "model.decoder.embed_positions"),
        "model.decoder.layers.* x2",
    ],
    "clip": [
        *("vision_model.encoder.layers.* x2", "visual_projection", "text_model.embeddings"),
        "text_model.encoder.layers.* x2",
    ],
    "llava": [
        *("model.vision_tower.encoder.layers.* x2", "model.multi_modal_projector"),
        "model.language_model.layers.* x3",
    ],
    "swin": [
        *("swin.encoder.layers.0.blocks.* x2", "swin.encoder.layers.0.downsample"),
        *("swin.encoder.layers.1.blocks.* x1", "swin.encoder.layers.1.downsample"),
        "swin.encoder.layers.2.blocks.* x3",
    ],
    "convnext": [
        *("convnext.encoder.stages.0.layers.* x1", "convnext.encoder.stages.1.downsampling_layer"),
        *("convnext.encoder.stages.1.layers.* x1", "convnext.encoder.stages.2.downsampling_layer"),
        *("convnext.encoder.stages.2.layers.* x2", "convnext.encoder.stages.3.downsampling_layer"),
        "convnext.encoder.stages.3.layers.* x1",
    ],
    "regnet": [f"regnet.encoder.stages.{n}.layers.* x{k}" for n, k in enumerate((1, 1, 2, 1))],
    "resnet": [f"resnet.encoder.stages.{n}.layers.* x{k}" for n, k in enumerate((2, 2, 2, 1))],
}
"""What lies between stem and head, in order of execution; items of one list as one entry."""

tied = pytest.mark.filterwarnings("ignore:.*are one tied parameter", "ignore:.*loss_type")


def family(layer: str) -> str:
    head, _, last = layer.rpartition(".")
    return f"{head}.*" if last.isdigit() else layer


def families(name: str, **options: Any) -> list[str]:
    model, example = tiny(name)
    layers = DropMuon(model, by="block", example=example, **options).layers
    found = []
    for kind, group in groupby(layers, family):
        found.append(f"{kind} x{len(list(group))}" if kind.endswith("*") else kind)
    return found


@tied
@pytest.mark.parametrize("name", TINY)
def test_blocks_of_all_towers_and_stages_are_found_in_order_of_execution(name: str) -> None:
    found = families(name)
    assert (found[0] == "stem") == (name != "t5")  # whose only table moves with the head
    assert [each for each in found if each not in ("stem", "head")] == BLOCKS[name]


@tied
@pytest.mark.parametrize(("name", "table"), [("t5", 0), ("whisper", 2)])
def test_a_table_that_moves_alone_is_a_layer_where_it_is_looked_up(name: str, table: int) -> None:
    found = families(name, tied="first")
    expected = {"t5": "stem", "whisper": "model.decoder.embed_tokens"}
    assert found[table] == expected[name]


@tied
@pytest.mark.filterwarnings("ignore:the example's forward does not reach")
@pytest.mark.parametrize("name", TINY)
def test_no_graph_is_recorded_below_a_cutoff(name: str) -> None:
    model, example = tiny(name)
    optimizer = DropMuon(model, by="block", example=example)
    # CLIP's first tower is beside the second, not below it.
    first = 4 if name == "clip" else 1
    for cutoff in range(first, len(optimizer.layers)):
        optimizer.activate(range(cutoff, len(optimizer.layers)))
        below = {m.module for layer in optimizer.roster.layers[:cutoff] for m in layer}
        recorded: list[nn.Module] = []

        def note(module: nn.Module, inputs: Any, output: Any, found: Any = recorded) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                found.append(module)

        handles = [module.register_forward_hook(note) for module in below if module is not None]
        loss = model(**example).loss
        for handle in handles:
            handle.remove()
        assert handles
        assert not recorded
        loss.backward()
        reached = {m.layer for m in optimizer.roster.members() if m.parameter.grad is not None}
        assert min(reached) == cutoff
        optimizer.zero_grad()
