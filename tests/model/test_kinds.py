"""What a parameter is taken for: by its module, its name and its shape."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from dropmuon import DropMuon, layer_groups, norms
from dropmuon.model.policies import Member


class Own(nn.Module):
    """A module that registers a parameter itself."""

    def __init__(self, name: str, *shape: int) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


def kind(name: str, *shape: int, module: nn.Module | None = None) -> tuple[str, str]:
    found = Member(f"model.{name}", torch.zeros(shape), module or Own(name, *shape)).kind
    return found.role, found.text


OWN = {
    ("cls_token", (1, 1, 8)): ("vector", "token"),
    ("class_embedding", (8,)): ("vector", "token"),
    ("mask_token", (1, 8)): ("table", "tokens"),
    ("register_tokens", (1, 4, 8)): ("table", "tokens"),
    ("pos_embed", (1, 5, 8)): ("table", "position table"),
    ("position_embeddings", (1, 5, 8)): ("table", "position table"),
    ("positional_embedding", (5, 8)): ("table", "position table"),
    ("relative_position_bias_table", (9, 2)): ("table", "relative position bias"),
    ("rel_pos_h", (9, 4)): ("table", "relative position bias"),
    ("rpb", (2, 5, 5)): ("table", "relative position bias"),
    ("query", (1, 4, 8)): ("table", "table"),
    ("token_embedding", (7, 8)): ("table", "embedding"),
    ("layer_scale", (8,)): ("vector", "scale"),
    ("gamma", (1, 1, 1, 8)): ("vector", "scale"),
    ("gamma", (8, 1, 1)): ("vector", "scale"),
    ("A_log", (8, 4)): ("vector", "scale"),
    ("logit_scale", ()): ("vector", "scale"),
    ("r_w_bias", (4, 2)): ("vector", "bias"),
    ("weight", (6, 8)): ("matrix", "matrix"),
    ("w1", (3, 6, 8)): ("stack", "stack of 3 matrices"),
    ("kernel", (6, 4, 3, 3)): ("convolution", "convolution"),
}


@pytest.mark.parametrize(("name", "shape"), OWN, ids=str)
def test_a_parameter_of_a_users_module_is_known_by_name_and_shape(name, shape):
    assert kind(name, *shape) == OWN[name, shape]


def test_parameters_of_torch_modules_are_known_by_their_modules():
    expected = {
        nn.Linear(4, 6): ("matrix", "matrix"),
        nn.Linear(4, 1): ("matrix", "matrix"),
        nn.Embedding(7, 4): ("table", "embedding"),
        nn.Conv1d(4, 6, 3): ("convolution", "convolution"),
        nn.Conv1d(4, 1, 3): ("convolution", "convolution"),
        nn.ConvTranspose2d(4, 6, 3): ("convolution", "convolution"),
        nn.Bilinear(4, 5, 6): ("stack", "stack of 6 matrices"),
        nn.LayerNorm(4): ("vector", "normalisation"),
        nn.BatchNorm2d(4): ("vector", "normalisation"),
        nn.PReLU(4): ("vector", "vector"),
    }
    for module, answer in expected.items():
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        assert kind("weight", *weight.shape, module=module) == answer, module


def test_a_convolution_with_a_parametrization_is_still_one():
    conv = parametrizations.weight_norm(nn.Conv1d(4, 6, 3))
    norm = {m.name: m.norm for m in DropMuon(conv, sampler="full").roster.members()}
    assert norm["parametrizations.weight.original1"] == norms.Spectral()


def test_lengths_of_rows_beside_a_normed_matrix_are_a_scale():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.Linear(3, 2))
    taken = {m.name: m.taken_for for m in DropMuon(model).roster.members()}
    assert taken["0.parametrizations.weight.original0"] == "scale"
    assert taken["0.parametrizations.weight.original1"] == "matrix"


def test_a_convolution_of_a_users_own_class_is_known_by_its_kernel():
    class OwnConv(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel_size, self.weight = 3, nn.Parameter(torch.zeros(6, 4, 3))

    assert kind("weight", 6, 4, 3, module=OwnConv())[0] == "convolution"
    assert kind("weight", 6, 4, 3)[0] == "stack"


def test_embeddings_of_positions_are_named_so():
    for owner, text in {
        "wpe": "position table",
        "embed_positions": "position table",
        "wte": "embedding",
        "token_type_embeddings": "embedding",
        "relative_attention_bias": "relative position bias",
    }.items():
        found = Member(f"model.{owner}.weight", torch.zeros(7, 4), nn.Embedding(7, 4)).kind
        assert (found.role, found.text) == ("table", text)


class Experts(nn.Module):
    """Experts as transformers stores them; `is_transposed` is what its decorator sets."""

    def __init__(self, is_transposed: bool | None = None, hidden: int = 4, inner: int = 3) -> None:
        super().__init__()
        if is_transposed is not None:
            self.is_transposed = is_transposed
        self.hidden_size = hidden
        up, down = (2 * inner, hidden), (hidden, inner)
        if is_transposed or is_transposed is None:
            up, down = up[::-1], down[::-1]
        self.gate_up_proj = nn.Parameter(torch.randn(5, *up))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(5, 2 * inner))
        self.down_proj = nn.Parameter(torch.randn(5, *down))


@pytest.mark.parametrize("is_transposed", [True, False, None])
def test_experts_are_batches_of_matrices_scaled_as_the_maps_they_are(is_transposed):
    model = nn.ModuleDict({"experts": Experts(is_transposed), "head": nn.Linear(4, 2)})
    groups = layer_groups(model, policy="muon", orthogonalize="svd")
    norm = {name: group["norm"] for group in groups for name, _ in group["params"]}
    for name, scale in (("gate_up_proj", 1.5**0.5), ("down_proj", (4 / 3) ** 0.5)):
        weight = getattr(model["experts"], name)
        step = norm[f"experts.{name}"].unit_direction(weight.detach())
        expected = torch.full((5, min(weight.shape[1:])), scale)
        torch.testing.assert_close(torch.linalg.svdvals(step), expected, msg=name)
    assert norm["experts.gate_up_proj_bias"] == norms.AdamW()


def test_experts_are_known_by_name_where_modules_are_not():
    member = Member("mlp.experts.gate_up_proj", torch.zeros(5, 6, 4))
    assert (member.kind.text, member.experts) == ("5 experts", 5)
    assert Member("mlp.experts.down_proj_bias", torch.zeros(5, 6)).experts == 5
    assert Member("conv.weight", torch.zeros(5, 6, 4)).experts == 1


def test_a_batch_norm_given_with_a_group_says_that_it_is_a_batch():
    given_norm = {"params": [nn.Parameter(torch.ones(5, 6, 4))]}
    batch = DropMuon([{**given_norm, "norm": norms.Spectral(blocks="batch")}])
    plain = DropMuon([{**given_norm, "norm": norms.Spectral()}])
    assert [m.experts for m in (*batch.roster.members(), *plain.roster.members())] == [5, 1]
    assert "stack of 5 matrices" in batch.describe()


class Conv1D(nn.Module):
    """GPT-2's linear layer."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(out=st.integers(2, 9), in_=st.integers(2, 9), policy=st.sampled_from(["muon", "scion"]))
def test_a_layer_stored_transposed_gets_the_step_of_a_linear_one(out, in_, policy):
    plain, stored = nn.Linear(in_, out, bias=False), Conv1D(out, in_)
    head = {"head": nn.Linear(out, 2)}
    found = []
    for layer in (plain, stored):
        model = nn.ModuleDict({"hidden": layer, **head})
        groups = layer_groups(model, policy=policy, orthogonalize="svd")
        found.append(groups[0]["norm"])
    g = plain.weight.detach()
    torch.testing.assert_close(found[1].unit_direction(g.mT), found[0].unit_direction(g).mT)


def test_sizes_that_a_module_declares_tell_how_it_stores_its_matrix():
    class Swapped(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.in_features, self.out_features = 3, 5
            self.weight = nn.Parameter(torch.zeros(shape))

    def stored(module: nn.Module) -> bool:
        (member,) = (Member(name, p, module) for name, p in module.named_parameters())
        return member.is_stored_transposed

    assert stored(Swapped(3, 5))
    assert not stored(Swapped(5, 3))
    assert stored(Conv1D(4, 4))
    assert not stored(nn.Linear(4, 4, bias=False))
    assert not stored(nn.Conv1d(3, 5, 5, bias=False))


def test_what_it_was_taken_for_survives_a_copy():
    model = nn.Sequential(Own("pos_embed", 1, 5, 8), Conv1D(4, 8), nn.Linear(4, 2))
    optimizer = DropMuon(model, policy="muon")
    text = optimizer.describe()
    for words in ("taken for", "position table", "matrix, stored (in, out)", "output layer"):
        assert words in text
    assert copy.deepcopy(optimizer).describe() == text


def test_pairs_know_tables_and_tokens_by_their_names():
    model = nn.Module()
    model.pos_embed = nn.Parameter(torch.ones(1, 5, 8))
    model.cls_token = nn.Parameter(torch.ones(1, 1, 8))
    model.head = nn.Linear(8, 2)
    optimizer = DropMuon(model.named_parameters(), policy="muon")
    taken = {member.name: member.taken_for for member in optimizer.roster.members()}
    assert taken["pos_embed"] == "position table"
    assert taken["cls_token"] == "token"
    assert {m.norm for m in optimizer.roster.members()} == {norms.AdamW()}
