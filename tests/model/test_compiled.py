"""Blocks are compiled one by one, with three graphs each; a model compiled as a whole is told."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, compile_blocks, samplers

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

X = torch.ones(2, 4)


class Block(nn.Module):
    """A block that uses its own number, if it is given one: then no graph serves two blocks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.outer(torch.tanh(self.inner(x))) * (1 + self.number)
        return found


class Stack(nn.Module):
    def __init__(self, blocks: int, *, numbered: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block(i if numbered else 0) for i in range(blocks))
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.last(self.norm(x))
        return found


class Graphs:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.fixture
def graphs() -> Any:
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


def all_cutoffs(model: nn.Module, optimizer: DropMuon, rounds: int = 2) -> None:
    for cutoff in [*range(len(optimizer.layers))] * rounds:
        optimizer.activate(range(cutoff, len(optimizer.layers)))
        model(X).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_equal_blocks_share_three_graphs(graphs: Graphs) -> None:
    torch.manual_seed(0)
    model = Stack(8)
    plain = copy.deepcopy(model)
    assert compile_blocks(model, backend=graphs) == tuple(f"blocks.{i}" for i in range(8))
    for each in (model, plain):
        all_cutoffs(each, DropMuon(each, by="block"))
    assert graphs.count == 3
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_blocks_that_share_no_graph_have_three_each_beyond_torchs_limit(graphs: Graphs) -> None:
    model = Stack(5, numbered=True)
    compile_blocks(model, backend=graphs)
    all_cutoffs(model, DropMuon(model, by="block"))
    assert torch._dynamo.config.recompile_limit < graphs.count == 5 * 3


def test_modules_in_compiled_code_get_no_hooks_that_would_cost_graphs(graphs: Graphs) -> None:
    def hooked(model: Stack) -> list[str]:
        return [name for name, module in model.named_modules() if module._forward_hooks]

    model = Stack(2)
    compile_blocks(model, backend=graphs)
    watching = DropMuon(model)
    assert hooked(model) == ["first", "norm", "last"]
    del watching
    adaptive = DropMuon(model, sampler="adaptive", parts=2)
    assert hooked(model) == ["first", "norm", "last"]
    del adaptive


def test_modules_of_groups_whose_model_is_known_get_none_either(graphs: Graphs) -> None:
    model = Stack(3)
    compile_blocks(model, backend=graphs)
    model.blocks[0].requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = DropMuon(params, model=model)
    assert not any(module._forward_hooks for module in model.blocks.modules())
    model.blocks[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model.blocks[0].parameters())})
    assert not any(module._forward_hooks for module in model.blocks.modules())
    assert model.first._forward_hooks


def test_a_block_that_a_last_norm_was_joined_to_is_compiled(graphs: Graphs) -> None:
    model = nn.ModuleDict({"blocks": Stack(3).blocks, "norm": nn.LayerNorm(4)})
    assert compile_blocks(model, backend=graphs) == ("blocks.0", "blocks.1", "blocks.2")


def test_settings_and_layers_are_the_users_choice(graphs: Graphs) -> None:
    model = Stack(2)
    names = compile_blocks(model, by=lambda name, p: name.split(".")[0], backend=graphs)
    assert names == ("first", "blocks", "norm", "last")
    assert compile_blocks(nn.DataParallel(Stack(2)), backend=graphs) == ("blocks.0", "blocks.1")
    model = Stack(2)
    model.head = model.norm  # a part of the layer of that name, and not all of it
    del model.norm
    assert compile_blocks(model, backend=graphs) == ("blocks.0", "blocks.1")
    frozen = Stack(2).requires_grad_(False)
    assert compile_blocks(frozen, backend=graphs) == ("blocks.0", "blocks.1")
    model = Stack(6, numbered=True)
    compile_blocks(model, backend=graphs, recompile_limit=2)
    with torch.no_grad():
        model(X)
    assert graphs.count == 2


def warned(model: Any, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = DropMuon(model, **settings)
        first = len(caught)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert len(caught) - first <= 1
    return [str(each.message) for each in caught]


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "compiled",
    [
        lambda model: torch.compile(model, backend="eager"),
        in_place,
        lambda model: nn.DataParallel(in_place(model)),
    ],
    ids=["torch.compile", "compile()", "in a wrapper"],
)
def test_a_model_that_is_compiled_as_a_whole_is_told_once(compiled: Any) -> None:
    (message,) = warned(compiled(Stack(8)), by="block")
    assert (
        "each of the 10 active sets of Progressive(probabilities=uniform) needs a graph" in message
    )
    assert "above torch's recompile_limit of 8 it runs eagerly" in message
    assert "dropmuon.compile_blocks(model)" in message


def test_a_model_that_is_compiled_after_the_optimizer_was_made_is_told_too() -> None:
    model = Stack(8)
    optimizer = DropMuon(model, by="block")
    in_place(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.warns(UserWarning, match="compiled as a whole"):
        optimizer.step()


@pytest.mark.parametrize(
    ("blocks", "settings"),
    [
        (6, {}),
        (8, {"sampler": "full"}),
        (8, {"truncate": False}),
        (8, {"sampler": samplers.Shares([0.5] * 9 + [1.0]), "parts": 2}),
    ],
    ids=["few sets", "full", "not truncated", "two sets"],
)
def test_a_model_that_needs_few_graphs_may_be_compiled_as_a_whole(
    blocks: int, settings: dict[str, Any]
) -> None:
    assert warned(in_place(Stack(blocks)), by="block", **settings) == []


@pytest.mark.parametrize(
    ("sampler", "parts"), [(samplers.RandomSubset(), 1), (samplers.Adaptive(), 2)]
)
def test_samplers_of_many_sets_are_told(sampler: samplers.Sampler, parts: int) -> None:
    (message,) = warned(in_place(Stack(8)), by="block", sampler=sampler, parts=parts)
    assert "compiled as a whole" in message
