"""Which layer is the output: known by what it is, however the model is cut."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dropmuon.model.layers import model_layers


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 8), nn.Linear(8, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)))


class Tower(nn.Module):
    """Blocks, with whatever is given after them."""

    def __init__(self, **after: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        for name, module in after.items():
            self.add_module(name, module)


def outputs(model: nn.Module, **options) -> list[str]:
    members = model_layers(model, **options).members()
    return [member.name for member in members if member.is_output]


def tied(model: nn.Module, **options) -> list[str]:
    members = list(model_layers(model, **options).members())
    assert not any(member.is_output for member in members)
    return [member.name for member in members if member.tied]


both_cuts = pytest.mark.parametrize("by", ["module", "block"])


@both_cuts
def test_a_model_without_a_head_has_no_output_layer(by):
    assert outputs(Tower(), by=by) == []
    assert outputs(Tower(norm=nn.LayerNorm(4)), by=by) == []
    assert outputs(nn.Sequential(Block(), Block()), by=by) == []


@both_cuts
@pytest.mark.parametrize("name", ["lm_head", "classifier", "score", "fc", "anything"])
def test_the_last_module_outside_of_the_blocks_is_the_output_whatever_its_name(by, name):
    model = Tower(norm=nn.LayerNorm(4), **{name: nn.Linear(4, 9)})
    assert outputs(model, by=by) == [f"{name}.weight"]


@both_cuts
def test_a_pooler_is_hidden_and_a_head_above_it_is_not(by):
    pooler = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    assert outputs(Tower(pooler=pooler), by=by) == []
    assert outputs(Tower(pooler=pooler, head=nn.Linear(4, 2)), by=by) == ["head.weight"]


@both_cuts
def test_of_a_head_of_several_layers_only_the_last_is_the_output(by):
    head = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 9))
    assert outputs(Tower(classifier=head), by=by) == ["classifier.2.weight"]


@both_cuts
def test_towers_have_a_head_each_and_what_is_before_a_tower_has_none(by):
    model = nn.Module()
    model.text, model.image = Tower(), Tower()
    model.text_projection, model.image_projection = nn.Linear(4, 3), nn.Linear(4, 3)
    assert outputs(model, by=by) == ["text_projection.weight", "image_projection.weight"]

    wrapper = nn.Module()
    wrapper.scale, wrapper.model = nn.Parameter(torch.ones(())), model
    expected = ["model.text_projection.weight", "model.image_projection.weight"]
    assert outputs(wrapper, by=by) == expected

    model = nn.Module()
    model.vision, model.projection, model.language = Tower(), nn.Linear(4, 4), Tower()
    model.lm_head = nn.Linear(4, 9)
    assert outputs(model, by=by) == ["lm_head.weight"]


@both_cuts
def test_an_embedding_that_is_tied_to_the_head_is_the_output_layer(by):
    model = Tower(norm=nn.LayerNorm(4), lm_head=nn.Linear(4, 9, bias=False))
    model.lm_head.weight = model.embed.weight
    assert tied(model, by=by) == ["lm_head.weight"]
    with pytest.warns(UserWarning, match="one tied parameter"):
        assert tied(model, by=by, tied="first") == ["embed.weight"]


def test_what_stands_before_a_tied_head_is_hidden():
    """As the transform of BERT's head for masked tokens."""
    model = Tower(transform=nn.Linear(4, 4), decoder=nn.Linear(4, 9, bias=False))
    model.decoder.weight = model.embed.weight
    assert tied(model) == ["decoder.weight"]


def test_order_of_use_decides_where_an_example_shows_it():
    class Backwards(Tower):
        def __init__(self) -> None:
            super().__init__(last=nn.Linear(4, 9), first=nn.Linear(4, 4))

        def forward(self, tokens):
            x = self.first(self.embed(tokens))
            for block in self.blocks:
                x = block(x)
            return self.last(x)

    example = torch.zeros(2, 3, dtype=torch.long)
    assert outputs(Backwards()) == ["first.weight"]
    assert outputs(Backwards(), example=example) == ["last.weight"]


def test_a_plain_stack_of_layers_ends_in_its_output():
    def pair(out: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, out))

    assert outputs(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))) == ["1.weight"]
    assert outputs(nn.Sequential(pair(4), pair(4), pair(2))) == ["2.2.weight"]
    assert outputs(nn.Sequential(pair(4), pair(4), pair(4))) == []
    assert outputs(nn.Linear(3, 2)) == ["weight"]


def test_layers_called_fc_before_the_last_are_hidden():
    names = ["fc1", "fc2", "fc3"]
    plain = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
    assert outputs(plain) == ["fc3.weight"]
    assert outputs(Tower(**{name: nn.Linear(4, 4) for name in names})) == ["fc3.weight"]


def test_of_matrices_that_a_model_holds_itself_only_the_last_is_the_output():
    model = nn.Module()
    for name in ("first", "second", "third"):
        model.register_parameter(name, nn.Parameter(torch.ones(3, 3)))
    assert outputs(model) == outputs(model, by=lambda name, parameter: name) == ["third"]
