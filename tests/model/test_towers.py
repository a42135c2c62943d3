"""Layers by block where blocks are in several towers or in stages, or hold lists themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.model.layer_members import members, names


class Block(nn.Module):
    """A residual block of two matrices, with a shortcut where widths change."""

    def __init__(self, width=4, inside=None):
        super().__init__()
        inside = inside or width
        self.norm = nn.LayerNorm(inside)
        self.shortcut = nn.Identity() if inside == width else nn.Linear(inside, width)
        self.first, self.second = nn.Linear(inside, width), nn.Linear(width, width)

    def forward(self, x):
        return self.shortcut(x) + self.second(torch.tanh(self.first(self.norm(x))))


class Tower(nn.Module):
    """Embedding, blocks and a last norm, which is registered first."""

    def __init__(self, depth):
        super().__init__()
        self.last_norm = nn.LayerNorm(4)
        self.embed = nn.Linear(3, 4)
        self.layers = nn.ModuleList([Block() for _ in range(depth)])

    def forward(self, x, context=0.0):
        x = self.embed(x) + context
        for layer in self.layers:
            x = layer(x)
        return self.last_norm(x)


class EncoderDecoder(nn.Module):
    """Two towers, the one that is used first registered last."""

    def __init__(self):
        super().__init__()
        self.decoder, self.encoder = Tower(2), Tower(3)
        self.bridge = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.decoder(x, self.bridge(self.encoder(x))))


def test_towers_come_in_order_of_execution_with_what_lies_between_them():
    found = members(EncoderDecoder(), by="block", example=torch.ones(1, 3))
    assert list(found) == [
        "stem",
        *("encoder.layers.0", "encoder.layers.1", "encoder.layers.2"),
        *("bridge", "decoder.embed", "decoder.layers.0", "decoder.layers.1", "head"),
    ]
    assert found["stem"] == ["encoder.embed.weight", "encoder.embed.bias"]
    assert found["encoder.layers.2"][-2:] == ["encoder.last_norm.weight", "encoder.last_norm.bias"]
    assert len(found["bridge"]) == 4
    assert found["head"] == [
        *("decoder.last_norm.weight", "decoder.last_norm.bias", "head.weight", "head.bias"),
    ]


def test_towers_come_in_order_of_registration_without_an_example():
    found = names(EncoderDecoder(), by="block")
    assert found == [
        *("stem", "decoder.layers.0", "decoder.layers.1", "encoder.last_norm"),
        *("encoder.layers.0", "encoder.layers.1", "encoder.layers.2", "head"),
    ]


class Stage(nn.Module):
    """Blocks of one width, and a change of width before them, as in ConvNeXt."""

    def __init__(self, inside, width, depth):
        super().__init__()
        self.narrow = nn.Sequential(nn.LayerNorm(inside), nn.Linear(inside, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, x):
        return self.blocks(self.narrow(x))


class Staged(nn.Module):
    def __init__(self, depths):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        widths = [4, *(4 * 2**n for n in range(len(depths)))]
        stages = [Stage(widths[n], widths[n + 1], depth) for n, depth in enumerate(depths)]
        self.encoder = nn.ModuleDict({"stages": nn.ModuleList(stages)})
        self.head = nn.Linear(widths[-1], 2)


def test_stages_are_cut_into_their_blocks():
    found = members(Staged([2, 1, 3]), by="block")
    stages = [f"encoder.stages.{n}" for n in range(3)]
    assert list(found) == [
        *("stem", f"{stages[0]}.blocks.0", f"{stages[0]}.blocks.1"),
        *(f"{stages[1]}.narrow", f"{stages[1]}.blocks.0", f"{stages[2]}.narrow"),
        *(f"{stages[2]}.blocks.{n}" for n in range(3)),
        "head",
    ]
    assert len(found[f"{stages[1]}.narrow"]) == 4


def test_stages_that_are_lists_are_cut_into_their_blocks():
    stages = [[Block(4), Block(4)], [Block(8, 4), Block(8)]]
    model = nn.Sequential(
        nn.Linear(3, 4), *(nn.Sequential(*stage) for stage in stages), nn.Linear(8, 2)
    )
    assert names(model, by="block") == ["0", "1.0", "1.1", "2.0", "2.1", "3"]


def test_stages_of_one_block_each_are_blocks():
    assert names(Staged([1, 1]), by="block") == [
        *("stem", "encoder.stages.0", "encoder.stages.1", "head"),
    ]


def test_wrapped_stages_and_blocks_are_found_as_bare_ones():
    model, wrapped = Staged([2, 1, 3]), Staged([2, 1, 3])
    stages = wrapped.encoder["stages"]
    stages[0] = torch.compile(stages[0], backend="eager")
    stages[2] = checkpoint_wrapper(stages[2])
    stages[1].blocks[0] = checkpoint_wrapper(stages[1].blocks[0])
    assert members(wrapped, by="block") == members(model, by="block")


class Numbered(nn.Module):
    """Stages and blocks as children with numbered names, as timm's RegNet has them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        for n, width in enumerate((4, 8), 1):
            stage = nn.Module()
            for k in (1, 2):
                stage.add_module(f"b{k}", Block(width, 4 if n > k else width))
            self.add_module(f"s{n}", stage)
        self.head = nn.Linear(8, 2)


def test_numbered_children_are_a_list_where_there_is_no_other():
    assert names(Numbered(), by="block") == ["stem", "s1.b1", "s1.b2", "s2.b1", "s2.b2", "head"]


def test_numbered_children_come_before_a_small_list_inside_another_child():
    model = nn.Module()
    model.inc = nn.Module()
    model.inc.convs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    model.down1, model.down2, model.up1, model.up2 = (Block() for _ in range(4))
    assert names(model, by="block") == ["stem", "down1", "down2", "up1", "up2"]


def test_encoder_and_decoder_of_torch_s_own_transformer_are_towers():
    model = nn.Transformer(4, 2, 2, 3, 8, batch_first=True)
    layers = [f"encoder.layers.{n}" for n in range(2)] + [f"decoder.layers.{n}" for n in range(3)]
    assert names(model, by="block") == layers


@pytest.mark.parametrize(("name", "label"), [("stem", "stem.norm"), ("head", "head")])
def test_a_module_between_towers_that_is_named_as_stem_or_head_is_neither(name, label):
    model = nn.Module()
    model.first, model.one = nn.Linear(3, 4), Tower(2)
    model.add_module(name, Block())
    model.two, model.last = Tower(2), nn.Linear(4, 2)
    found = members(model, by="block")
    assert found["stem"][0] == "first.weight"
    assert all(each.startswith(f"{name}.") for each in found[label])
    assert found["last" if name == "head" else "head"] == ["last.weight", "last.bias"]


class Experts(nn.Module):
    """Attention beside a list of experts, which are alike but no blocks of a stage."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.out = (nn.Linear(4, 4) for _ in range(3))
        self.experts = nn.ModuleList([Block() for _ in range(4)])


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(4), inner


@pytest.mark.parametrize(
    "block",
    [
        Experts,
        lambda: nn.ModuleList(
            [Wrapper(nn.MultiheadAttention(4, 1)), Wrapper(nn.Sequential(Block(), Block()))]
        ),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
    ],
    ids=["experts", "wrapped attention and MLP", "layers of an MLP"],
)
def test_lists_inside_a_block_do_not_make_it_a_stage(block):
    model = nn.Module()
    model.embed, model.layers = nn.Linear(3, 4), nn.ModuleList([block() for _ in range(3)])
    model.other = nn.Module()
    model.other.layers = nn.ModuleList([Block(), Block()])
    assert names(model, by="block") == [
        *("stem", "layers.0", "layers.1", "layers.2", "other.layers.0", "other.layers.1"),
    ]


def test_towers_of_single_matrices_are_towers_if_they_are_of_a_size():
    def half():
        module = nn.Module()
        module.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        return module

    model = nn.Module()
    model.encoder, model.decoder, model.small = half(), half(), nn.Module()
    model.small.net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert names(model, by="block") == [
        *("encoder.net.0", "encoder.net.2", "decoder.net.0", "decoder.net.2", "head"),
    ]


def test_norms_join_the_layer_before_them_and_the_first_one_the_layer_after():
    model = nn.Sequential(
        *(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(), nn.Linear(4, 2)),
        nn.LayerNorm(2),
    )
    found = members(model, by="block")
    assert list(found) == ["1", "4"]
    assert [name[0] for name in found["1"]] == list("0011223")
    assert [name[0] for name in found["4"]] == list("4455")


def test_a_model_of_vectors_keeps_its_blocks():
    model = nn.Sequential(nn.LayerNorm(2), nn.LayerNorm(2))
    assert names(model, by="block") == ["0", "1"]
