"""What is a layer: every trainable parameter in exactly one, in order, named and explained."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon, layer_groups, samplers
from dropmuon.model.layers import model_layers
from tests.models import PROBLEMS

law = settings(derandomize=True, deadline=None, max_examples=60)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def names(model, **options):
    return list(model_layers(model, **options).names)


def members(model, **options):
    roster = model_layers(model, **options)
    found = ([member.name for member in layer] for layer in roster.layers)
    return dict(zip(roster.names, found, strict=True))


def refusal(model, by):
    try:
        layer_groups(model, by)
    except ValueError as error:
        return str(error)
    return None


def train(optimizer, loss_of, steps):
    losses = []
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


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


# By block


class GPT(nn.Module):
    """Modules in a ModuleDict, as nanoGPT has them."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(7, 4),
                "wpe": nn.Embedding(5, 4),
                "h": nn.ModuleList([nn.ModuleDict({"a": nn.Linear(4, 4)}) for _ in range(3)]),
                "ln_f": nn.LayerNorm(4),
            }
        )
        self.lm_head = nn.Linear(4, 7, bias=False)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 2, 1)
        self.bn1 = nn.BatchNorm2d(2)
        for n in range(4):
            stage = nn.Sequential(*(self.block() for _ in range(2)))
            self.add_module(f"layer{n + 1}", stage)
        self.fc = nn.Linear(2, 5)

    @staticmethod
    def block():
        return nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(2, 3)
        self.downs = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.mid = nn.Linear(3, 3)
        self.ups = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
        self.leave = nn.Linear(3, 1)

    def forward(self, x):
        x, skips = self.enter(x), []
        for down in self.downs:
            x = down(x)
            skips.append(x)
        x = self.mid(x)
        for up in self.ups:
            x = up(torch.cat([x, skips.pop()], -1))
        return self.leave(x)


def test_blocks_of_a_gpt_are_its_list_with_stem_and_head_around():
    found = members(GPT(), by="block")
    assert list(found) == ["stem", "transformer.h.0", "transformer.h.1", "transformer.h.2", "head"]
    assert found["stem"] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert found["transformer.h.1"] == ["transformer.h.1.a.weight", "transformer.h.1.a.bias"]
    assert found["head"] == [
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
        "lm_head.weight",
    ]


def test_blocks_of_a_resnet_are_the_items_of_its_four_stages():
    found = members(ResNet(), by="block")
    stages = [f"layer{n}.{k}" for n in (1, 2, 3, 4) for k in (0, 1)]
    assert list(found) == ["stem", *stages, "head"]
    assert found["stem"] == ["conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias"]
    assert found["head"] == ["fc.weight", "fc.bias"]
    assert len(found["layer3.1"]) == 4


def test_blocks_of_a_plain_sequential_are_its_items():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 1))
    assert names(model, by="block") == ["0", "2", "3"]


def test_blocks_of_a_sequential_of_sequentials_are_the_outer_ones():
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)) for _ in range(3))
    )
    found = names(model, by="block")
    assert found in (["0", "1", "2"], [f"{n}.{k}" for n in range(3) for k in (0, 2)])
    assert len({name.split(".")[0] for name in found}) == 3


def test_blocks_of_a_unet_have_its_middle_between_them():
    expected = ["stem", "downs.0", "downs.1", "mid", "ups.0", "ups.1", "head"]
    assert names(UNet(), by="block") == expected
    assert names(UNet(), by="block", example=torch.ones(1, 2)) == expected


def test_blocks_of_a_stock_problem_hold_whole_blocks():
    model, *_ = PROBLEMS["transformer"]()
    found = members(model, by="block")
    assert list(found) == ["stem", "blocks.0", "blocks.1", "head"]
    assert all(name.startswith("blocks.0.") for name in found["blocks.0"])
    assert sum(map(len, found.values())) == len(list(model.parameters()))


def test_a_model_without_blocks_is_told_what_to_use_instead():
    with pytest.raises(ValueError, match=r"ModuleList or Sequential.*by=\"module\""):
        layer_groups(nn.Linear(2, 2), by="block")


# By callable


def test_a_callable_labels_parameters_and_layers_come_in_order_of_first_mention():
    model, *_ = PROBLEMS["mlp"]()
    kinds = members(model, by=lambda name, p: "matrix" if p.ndim == 2 else "vector")
    assert list(kinds) == ["matrix", "vector"]
    assert kinds["vector"] == ["0.bias", "2.bias", "4.bias"]
    assert names(model, by=lambda name, p: 4 - int(name[0])) == ["4", "2", "0"]


def test_the_optimizer_takes_the_same_ways_as_layer_groups():
    model, *_ = PROBLEMS["residual"]()
    assert DropMuon(model, by="block").layers == (
        *("stem", "blocks.0", "blocks.1", "blocks.2", "head"),
    )
    assert DropMuon(model, by=lambda name, p: name).layers == tuple(
        name for name, _ in model.named_parameters()
    )
    groups = layer_groups(model, by="block", policy="sign")
    assert DropMuon(groups).layers == DropMuon(model, by="block").layers


# Order by execution


class Backwards(nn.Module):
    """Registered from the output to the input."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.middle = nn.Linear(3, 3)
        self.first = nn.Linear(2, 3)

    def forward(self, x, *, scale=1.0, shift=None):
        x = self.last(self.middle(self.first(x * scale)))
        return x if shift is None else x + shift


@pytest.mark.parametrize(
    "example",
    [
        torch.ones(4, 2),
        (torch.ones(4, 2),),
        {"x": torch.ones(4, 2), "scale": 2.0, "shift": torch.ones(1)},
    ],
    ids=["tensor", "tuple", "dict"],
)
def test_with_an_example_layers_come_in_order_of_execution(example):
    assert names(Backwards()) == ["last", "middle", "first"]
    assert names(Backwards(), example=example) == ["first", "middle", "last"]
    assert DropMuon(Backwards(), example=example).layers == ("first", "middle", "last")


def test_execution_order_is_seen_through_functional_uses():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Parameter(torch.ones(3, 3))
            self.a = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return nn.functional.linear(nn.functional.linear(x, self.a), self.b)

    ordered = names(Functional(), by=lambda name, p: name, example=torch.ones(1, 2))
    assert ordered == ["a", "b"]


def test_execution_order_sees_inside_a_stock_transformer_layer():
    model = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    assert names(model, example=torch.ones(1, 3, 4)) == [
        *("self_attn", "self_attn.out_proj", "norm1", "linear1", "linear2", "norm2"),
    ]


def test_an_example_that_does_not_run_is_a_clear_error_and_leaves_the_model_alone():
    model = Backwards()
    with pytest.raises(ValueError, match="example could not be run"):
        layer_groups(model, example=torch.ones(4, 7))
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.mean = nn.BatchNorm1d(3, momentum=None)
        self.drop = nn.Dropout(0.5)
        self.asleep = nn.BatchNorm1d(3).eval()

    def forward(self, x):
        x = self.asleep(self.drop(self.mean(self.norm(self.stem(x)))))
        return x + torch.rand(())


def test_the_example_run_leaves_generators_modes_and_statistics_as_they_were():
    model = Noisy()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    modes = {name: module.training for name, module in model.named_modules()}
    assert modes["asleep"] is False
    state = torch.get_rng_state()
    DropMuon(model, example=torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_the_example_run_puts_back_buffers_that_are_written_in_evaluation_too():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = nn.Sequential(Counting(), nn.Linear(2, 1))
    DropMuon(model, example=torch.ones(1, 2))
    assert model[0].calls == 0


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
        found = members(model, example=given)
    expected = {
        "embedding": ["embedding.weight"],
        "hidden": ["hidden.weight", "hidden.bias"],
    }
    assert found == expected
    if example:
        assert list(found) == ["embedding", "hidden"]


def test_a_tied_weight_trains_with_its_earliest_layer_only():
    model = Tied(False)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    with pytest.warns(UserWarning, match="tied"):
        optimizer = DropMuon(model, sampler=samplers.Serial())
    drawn = set()
    for _ in range(12):
        active, before = optimizer.active, model.embedding.weight.detach().clone()
        train(optimizer, lambda: model(tokens).logsumexp(-1).mean(), 1)
        assert torch.equal(model.embedding.weight, before) == (0 not in active)
        drawn.add(active)
    assert drawn == {(0, 1), (0,), (1,)}
    assert model.head.weight is model.embedding.weight


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


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.embed = nn.Linear(6, 4)
        self.cls_token = nn.Parameter(torch.ones(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.ones(1, 3, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def test_parameters_of_the_root_are_a_layer_named_after_its_class():
    found = members(ViT(), example=torch.ones(2, 2, 6))
    assert list(found) == ["embed", "ViT", "blocks.0", "blocks.1", "head"]
    assert found["ViT"] == ["cls_token", "pos_embed"]


def test_parameters_of_the_root_are_in_the_stem_of_blocks_by_execution():
    found = members(ViT(), by="block", example=torch.ones(2, 2, 6))
    assert list(found) == ["stem", "blocks.0", "blocks.1", "head"]
    assert found["stem"] == ["embed.weight", "embed.bias", "cls_token", "pos_embed"]


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


class Lazybones(nn.Module):
    """Three modules of which the forward uses the outer two."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.spare = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.stem(x)))


def test_what_an_example_does_not_reach_is_put_into_the_first_layer_with_a_warning():
    model = Lazybones()
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
    model = Lazybones()
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
    model = Lazybones()
    with pytest.warns(UserWarning, match="does not reach"):
        optimizer = DropMuon(model, sampler=samplers.Serial(), example=torch.ones(1, 3))
    train(optimizer, lambda: model(torch.ones(2, 3)).square().sum(), 30)
    assert optimizer.layers == ("stem", "head")


# Frozen parameters


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
        layer_groups([nn.Linear(1, 1)])


# Wrapped models


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_model_in_ddp_has_clean_names_and_trains():
    model, make_batch, loss = PROBLEMS["residual"]()
    plain = copy.deepcopy(model)
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    for options in ({}, {"by": "block"}, {"example": make_batch(0)[0]}):
        assert members(wrapped, **options) == members(plain, **options)
    ours = DropMuon(wrapped, sampler=samplers.Serial())
    theirs = DropMuon(plain, sampler=samplers.Serial())
    for step in range(8):
        batch = make_batch(step)
        train(ours, lambda batch=batch: loss(wrapped, batch), 1)
        train(theirs, lambda batch=batch: loss(plain, batch), 1)
        assert ours.active == theirs.active
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


def test_compiled_models_have_clean_names():
    model, make_batch, _ = PROBLEMS["residual"]()
    whole = torch.compile(copy.deepcopy(model), backend="eager")
    inside = copy.deepcopy(model)
    for n, block in enumerate(inside.blocks):
        inside.blocks[n] = torch.compile(block, backend="eager")
    assert any("_orig_mod" in name for name, _ in whole.named_parameters())
    assert any("_orig_mod" in name for name, _ in inside.named_parameters())
    for wrapped in (whole, inside):
        assert members(wrapped) == members(model)
        assert members(wrapped, by="block") == members(model, by="block")
    assert members(whole, example=make_batch(0)[0]) == members(model)


# What a person reads


def test_the_table_holds_names_counts_shapes_norms_and_reasons():
    model = nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(40, 5))
    optimizer = DropMuon(model, policy="muon", sampler=samplers.Nice(2))
    text = optimizer.describe()
    assert str(optimizer) == text
    title, *_ = text.splitlines()
    assert title == "DropMuon: 3 layers, sampler Nice(tau=2)"
    rows = [line for line in text.splitlines() if "weight" in line or "bias" in line]
    assert [line.split()[0] for line in rows if not line.startswith(" ")] == ["0", "1", "3"]
    convolution = next(line for line in rows if "40x3x3x3" in line)
    assert "weight (1.08k)" in convolution
    assert "Spectral" in convolution
    assert convolution.rstrip().endswith("hidden: a convolution, as a matrix (out, in*kernel)")
    output = next(line for line in rows if "5x40" in line)
    assert "weight (200)" in output
    assert "AdamW" in output
    assert "the output layer" in output
    both = next(line for line in rows if "weight, bias (80)" in line)
    assert "2 of 40" in both
    assert both.rstrip().endswith("a vector")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"by": "modules"},
            "by must be one of block, module, got 'modules'; did you mean 'mod",
        ),
        ({"by": "Blocks"}, "did you mean 'block'"),
        ({"policy": "spectal"}, "policy must be one of .*got 'spectal'; did you mean 'spectral'"),
        ({"policy": "signs"}, "did you mean 'sign'"),
    ],
)
def test_unknown_names_suggest_the_nearest(options, message):
    with pytest.raises(ValueError, match=message):
        layer_groups(nn.Linear(2, 2), **options)
    with pytest.raises(ValueError, match=message):
        DropMuon(nn.Linear(2, 2), **options)


def test_describing_a_model_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in PROBLEMS.values():
            model, make_batch, _ = make()
            assert str(DropMuon(model, example=make_batch(0)[:-1]))


def test_a_parametrized_module_is_one_layer():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    optimizer = DropMuon(nn.Sequential(module, nn.Linear(4, 2)))
    assert optimizer.layers == ("0", "1")


def test_parameters_without_a_shape_yet_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="has no shape yet; run the model once"):
        DropMuon(nn.Sequential(nn.LazyLinear(3)))
