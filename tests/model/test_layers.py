"""What is a layer: every trainable parameter in exactly one, in order."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon, layer_groups, samplers
from tests.model.layer_members import ViT, members, names, train
from tests.models import PROBLEMS

law = settings(derandomize=True, deadline=None, max_examples=60)


def refusal(model, by):
    try:
        layer_groups(model, by)
    except ValueError as error:
        return str(error)
    return None


# Every parameter in exactly one layer


class Tree(nn.Module):
    """A module with parameters of its own and children, as hypothesis likes."""

    def __init__(self, own, children, frozen):
        super().__init__()
        for n, size in enumerate(own):
            self.register_parameter(f"p{n}", nn.Parameter(torch.ones(size), not frozen))
        for n, child in enumerate(children):
            self.add_module(f"c{n}", child)


def containers(children):
    return st.one_of(
        children.map(nn.ModuleList),
        children.map(lambda items: nn.Sequential(*items)),
        children.map(lambda items: nn.ModuleDict({f"k{n}": m for n, m in enumerate(items)})),
    )


SIZES = st.lists(st.sampled_from([(), (2,), (2, 3), (2, 1, 1), (2, 3, 1, 1)]), max_size=2)
LEAVES = st.one_of(
    st.builds(Tree, SIZES, st.just([]), st.booleans()),
    st.builds(lambda: nn.Linear(2, 2)),
    st.builds(lambda: nn.BatchNorm1d(2)),
    st.builds(nn.Identity),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        containers(st.lists(inner, max_size=3)),
        st.builds(Tree, SIZES, st.lists(inner, max_size=3), st.booleans()),
    ),
    max_leaves=8,
)


@law
@given(TREES, st.sampled_from(["module", "block", "name", "one", "size"]))
def test_every_trainable_parameter_is_in_exactly_one_layer(model, by):
    ways = {"name": lambda n, p: n, "one": lambda n, p: 0, "size": lambda n, p: p.numel()}
    wanted = {n for n, p in model.named_parameters() if p.requires_grad}
    way = ways.get(by, by)
    reason = refusal(model, way) if by == "block" or not wanted else None
    if reason is not None:
        assert ("nothing to optimize" in reason and not wanted) or "two or more items" in reason
        return
    groups = layer_groups(model, way)
    placed = [name for group in groups for name, _ in group["params"]]
    assert len(placed) == len(set(placed))
    assert wanted <= set(placed) <= {n for n, _ in model.named_parameters()}
    by_name = dict(model.named_parameters())
    assert all(by_name[name] is p for group in groups for name, p in group["params"])
    for layer in {group["layer"] for group in groups}:
        inside = [n for g in groups if g["layer"] == layer for n, _ in g["params"]]
        assert wanted & set(inside), "a layer without anything to train was kept"


@law
@given(TREES)
def test_layers_by_module_are_the_modules_that_own_parameters_in_order_of_registration(model):
    owners = [
        path or type(model).__name__
        for path, module in model.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    if owners:
        assert names(model) == owners


@law
@given(TREES, st.randoms(use_true_random=False))
def test_an_optimizer_holds_what_its_model_trains(model, random):
    wanted = {id(p) for p in model.parameters() if p.requires_grad}
    if not wanted:
        with pytest.raises(ValueError, match="nothing to optimize"):
            DropMuon(model)
        return
    optimizer = DropMuon(model)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert wanted <= set(held)
    assert {id(p) for p in model.parameters() if p.requires_grad} == wanted


# By callable


def test_a_callable_labels_parameters_and_layers_come_in_order_of_first_mention():
    model, *_ = PROBLEMS["mlp"]()
    kinds = members(model, by=lambda name, p: "matrix" if p.ndim == 2 else "vector")
    assert list(kinds) == ["matrix", "vector"]
    assert kinds["vector"] == ["0.bias", "2.bias", "4.bias"]
    assert names(model, by=lambda name, p: 4 - int(name[0])) == ["4", "2", "0"]


# Tied weights


class Tied(nn.Module):
    def __init__(self, head_first):
        super().__init__()
        embedding, head = nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)
        head.weight = embedding.weight
        parts = {"embedding": embedding, "hidden": nn.Linear(3, 3), "head": head}
        for name in reversed(parts) if head_first else parts:
            self.add_module(name, parts[name])

    def forward(self, tokens):
        return self.head(self.hidden(self.embedding(tokens)))


@pytest.mark.parametrize(("head_first", "example"), [(False, False), (False, True), (True, True)])
def test_a_tied_weight_belongs_to_its_earliest_use_and_says_so(head_first, example):
    model = Tied(head_first)
    given = torch.tensor([[0, 1]]) if example else None
    with pytest.warns(UserWarning, match=r"one tied parameter.*earliest use, 'embedding.weight'"):
        found = members(model, example=given, tied="first")
    expected = {
        "embedding": ["embedding.weight"],
        "hidden": ["hidden.weight", "hidden.bias"],
    }
    assert found == expected
    if example:
        assert list(found) == ["embedding", "hidden"]


@pytest.mark.parametrize(("head_first", "example"), [(False, False), (False, True), (True, True)])
def test_by_default_an_embedding_that_is_tied_belongs_to_the_head(head_first, example):
    model = Tied(head_first)
    given = torch.tensor([[0, 1]]) if example else None
    found = members(model, example=given)
    assert found == {"hidden": ["hidden.weight", "hidden.bias"], "head": ["head.weight"]}
    assert list(found) == ["hidden", "head"]


def test_a_head_that_is_registered_first_is_the_earliest_use_without_an_example():
    with pytest.warns(UserWarning, match=r"one tied parameter.*earliest use, 'head.weight'"):
        assert list(members(Tied(True))) == ["head", "hidden"]


def test_a_tied_weight_trains_with_its_earliest_layer_only():
    model = Tied(False)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    with pytest.warns(UserWarning, match="tied"):
        optimizer = DropMuon(model, sampler=samplers.Serial(), tied="first")
    weight = model.get_parameter("embedding.weight")
    drawn = set()
    for _ in range(12):
        active, before = optimizer.active, weight.detach().clone()
        train(optimizer, lambda: model(tokens).logsumexp(-1).mean(), 1)
        assert torch.equal(weight, before) == (0 not in active)
        drawn.add(active)
    assert drawn == {(0, 1), (0,), (1,)}
    assert model.head.weight is weight


def test_a_module_used_twice_is_one_layer_at_its_first_use_without_a_warning():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)
            self.shared = nn.Linear(3, 3)
            self.between = nn.Linear(3, 3)
            self.alias = self.shared

        def forward(self, x):
            return self.head(self.alias(self.between(self.shared(x))))

    model = Twice()
    assert names(model) == ["head", "shared", "between"]
    assert names(model, example=torch.ones(1, 3)) == ["shared", "between", "head"]
    optimizer = DropMuon(model, sampler=samplers.Serial(), example=torch.ones(1, 3))
    before = copy.deepcopy(model.state_dict())
    train(optimizer, lambda: model(torch.ones(1, 3)).square().sum(), 12)
    after = model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)


# Parameters outside the usual places


def test_parameters_of_the_root_are_a_layer_named_after_its_class():
    found = members(ViT(), example=torch.ones(2, 2, 6))
    assert list(found) == ["embed", "ViT", "blocks.0", "blocks.1", "head"]
    assert found["ViT"] == ["cls_token", "pos_embed"]


def test_parameters_of_a_container_are_a_layer_named_after_it():
    class Stack(nn.ModuleList):
        def __init__(self):
            super().__init__([nn.Linear(2, 2), nn.Linear(2, 2)])
            self.gain = nn.Parameter(torch.ones(2))

    model = nn.Module()
    model.stack = Stack()
    found = members(model)
    assert found["stack"] == ["stack.gain"]
    assert list(found) == ["stack", "stack.0", "stack.1"]
    lists = nn.Module()
    lists.table = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))])
    lists.named = nn.ParameterDict({"k": nn.Parameter(torch.ones(2))})
    assert members(lists) == {"table": ["table.0", "table.1"], "named": ["named.k"]}


# Parameters that no forward reaches


class PartlyUsed(nn.Module):
    """Three modules of which the forward uses the outer two."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.spare = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.stem(x)))


def test_what_an_example_does_not_reach_is_put_into_the_first_layer_with_a_warning():
    model = PartlyUsed()
    with pytest.warns(UserWarning, match=r"does not reach 'spare.weight', 'spare.bias'"):
        found = members(model, example=torch.ones(1, 3))
    assert list(found) == ["stem", "head"]
    assert found["stem"] == ["stem.weight", "stem.bias", "spare.weight", "spare.bias"]


def test_an_example_that_reaches_nothing_is_refused():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(3, 3)

        def forward(self, x):
            return x

    with (
        pytest.warns(UserWarning, match="does not reach"),
        pytest.raises(ValueError, match="reaches no parameter"),
    ):
        layer_groups(Idle(), example=torch.ones(1))


def test_without_an_example_the_first_full_step_finds_what_no_gradient_reaches():
    torch.manual_seed(0)
    model = PartlyUsed()
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial())
    x = torch.randn(8, 3)
    loss = model(x).square().mean()
    loss.backward()
    with pytest.warns(UserWarning, match="no gradient reached 'spare' in a full step"):
        optimizer.step()
    spare = copy.deepcopy(model.spare.state_dict())
    drawn = set()
    for _ in range(60):
        drawn.add(optimizer.active)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert drawn == {(0,), (1, 2), (2,)}
    assert all(torch.equal(spare[name], value) for name, value in model.spare.state_dict().items())


def test_with_an_example_every_draw_reaches_the_loss():
    model = PartlyUsed()
    with pytest.warns(UserWarning, match="does not reach"):
        optimizer = DropMuon(model, sampler=samplers.Serial(), example=torch.ones(1, 3))
    train(optimizer, lambda: model(torch.ones(2, 3)).square().sum(), 30)
    assert optimizer.layers == ("stem", "head")


# Parameters that cannot be trained


def test_layers_frozen_as_a_whole_are_left_out_unless_asked_for():
    model, *_ = PROBLEMS["mlp"]()
    model[2].requires_grad_(False)
    assert names(model) == ["0", "4"]
    assert names(model, include_frozen=True) == ["0", "2", "4"]
    kept = layer_groups(model, include_frozen=True)
    assert [name for group in kept for name, _ in group["params"]].count("2.weight") == 1
    assert model[2].weight.requires_grad is False


def test_a_layer_that_is_frozen_in_part_is_kept_whole():
    model, *_ = PROBLEMS["mlp"]()
    model[2].bias.requires_grad_(False)
    assert members(model)["2"] == ["2.weight", "2.bias"]
    optimizer = DropMuon(model)
    assert optimizer.layers == ("0", "2", "4")
    assert model[2].bias.requires_grad is False


def test_a_model_without_anything_to_train_is_refused_with_the_reason():
    model, *_ = PROBLEMS["mlp"]()
    with pytest.raises(ValueError, match="all parameters of Sequential are frozen"):
        DropMuon(model.requires_grad_(False))
    with pytest.raises(ValueError, match="Identity has no parameters"):
        DropMuon(nn.Identity())
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got list"):
        layer_groups([nn.Linear(1, 1)])  # type: ignore[arg-type]


def test_parameters_without_a_shape_yet_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="has no shape yet; run the model once"):
        DropMuon(nn.Sequential(nn.LazyLinear(3)))
