"""Fused matrices: split where it is asked for, by sizes that are known or given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon, layer_groups, norms, policies


class Attention(nn.Module):
    """Attention with grouped queries, as Phi-3 stores it."""

    def __init__(self, heads: int, key_heads: int, head_dim: int = 4, width: int = 8) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim = heads, key_heads, head_dim
        self.qkv_proj = nn.Linear(width, (heads + 2 * key_heads) * head_dim, bias=False)


def model_of(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({**modules, "head": nn.Linear(8, 2)})


def chosen(model: nn.Module, policy: Any) -> dict[str, policies.Choice]:
    groups = layer_groups(model, policy=policy, orthogonalize="svd")
    return {
        name: policies.Choice(group["norm"], group["reason"])
        for group in groups
        for name, _ in group["params"]
    }


def spectral(**settings_: Any) -> norms.Spectral:
    return norms.Spectral("svd", scale="muon", **settings_)


@settings(derandomize=True, deadline=None, max_examples=20)
@given(key_heads=st.integers(1, 3), group=st.integers(1, 3))
def test_queries_keys_and_values_step_as_three_matrices(key_heads: int, group: int) -> None:
    heads = key_heads * group
    attention = Attention(heads, key_heads)
    (found, *_) = chosen(model_of(attention=attention), policies.split_fused("muon")).values()
    g = torch.randn(attention.qkv_proj.weight.shape, dtype=torch.float64)
    pieces = torch.split(g, [4 * heads, 4 * key_heads, 4 * key_heads])
    expected = torch.cat([spectral().unit_direction(piece) for piece in pieces])
    torch.testing.assert_close(found.norm.unit_direction(g), expected)


def test_it_is_off_by_default_and_told_in_the_table() -> None:
    model = model_of(attention=Attention(4, 1))
    assert chosen(model, "muon")["attention.qkv_proj.weight"].norm == spectral()
    text = DropMuon(model, policy=policies.split_fused("muon")).describe()
    assert "Split(Spectral(scale=muon), (16, 4, 4))" in text
    assert "hidden: a matrix, split into pieces of (16, 4, 4)" in text


def test_what_is_not_fused_and_what_is_not_orthogonalised_stays_as_it_is() -> None:
    model = model_of(hidden=nn.Linear(8, 24), qkv=nn.Linear(8, 24))
    for policy in ("muon", "euclidean", lambda member: "sign"):
        plain, split = chosen(model, policy), chosen(model, policies.split_fused(policy))
        apart = {name for name in plain if plain[name] != split[name]}
        assert apart == ({"qkv.weight"} if policy == "muon" else set())


class Conv1D(nn.Module):
    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx, self.weight = nf, nx, nn.Parameter(torch.randn(nx, nf))


class Experts(nn.Module):
    def __init__(self, is_concatenated: bool = True, is_transposed: bool = False) -> None:
        super().__init__()
        self.is_concatenated, self.is_transposed = is_concatenated, is_transposed
        shape = (3, 8, 12) if is_transposed else (3, 12, 8)
        self.gate_up_proj = nn.Parameter(torch.randn(shape))


@pytest.mark.parametrize("policy", ["muon", "spectral", "scion"])
def test_storage_does_not_matter_to_the_pieces(policy: Any) -> None:
    scale: Any = {"muon": "muon", "spectral": 1.0, "scion": "rms"}[policy]
    split = norms.Split(norms.Spectral("svd", scale=scale), 3, dim=-2)
    both = norms.Split(norms.Spectral("svd", scale=scale, blocks="batch"), 2, dim=-2)
    for module, name, norm in [
        (nn.Linear(8, 24), "qkv.weight", split),
        (Conv1D(24, 8), "qkv.weight", norms.Transposed(split)),
        (Experts(), "qkv.gate_up_proj", both),
        (Experts(is_transposed=True), "qkv.gate_up_proj", norms.Transposed(both)),
    ]:
        found = chosen(model_of(qkv=module), policies.split_fused(policy))
        assert found[name].norm == norm, module


def test_each_expert_has_its_gate_and_its_up_orthogonalised() -> None:
    experts = Experts(is_transposed=True)
    norm = chosen(model_of(experts=experts), policies.split_fused())["experts.gate_up_proj"].norm
    step = norm.unit_direction(experts.gate_up_proj.detach())
    values = torch.linalg.svdvals(torch.cat(step.split(6, dim=-1)))
    torch.testing.assert_close(values, torch.ones(6, 6))


def test_attention_of_torch_is_split_into_thirds() -> None:
    model = model_of(attention=nn.MultiheadAttention(8, 2))
    found = chosen(model, policies.split_fused())["attention.in_proj_weight"]
    assert found.norm == norms.Split(spectral(), 3, dim=-2)


def test_keys_and_values_of_cross_attention_are_halves() -> None:
    attention = Attention(2, 2)
    attention.qkv_proj = nn.Linear(8, 16)
    found = chosen(model_of(attention=attention), policies.split_fused())
    assert found["attention.qkv_proj.weight"].norm == norms.Split(spectral(), 2, dim=-2)


@pytest.mark.parametrize(
    ("name", "module", "why"),
    [
        ("qkv", nn.Linear(8, 20), "which has 20 outputs for 8 inputs"),
        ("query_key_value", nn.Linear(8, 24), "which is stored head by head"),
        ("gate_up_proj", nn.Linear(8, 7), "which is not one half after the other"),
        ("experts", Experts(is_concatenated=False), "which is not one half after the other"),
    ],
)
def test_what_cannot_be_known_is_refused_unless_it_is_given(
    name: str, module: nn.Module, why: str
) -> None:
    label = "gate_up_proj" if name == "experts" else name
    model = model_of(**{name: module})
    with pytest.raises(
        ValueError, match=rf"cannot tell the pieces of '{name}.*{why}; .*to leave it whole"
    ):
        chosen(model, policies.split_fused())
    whole = chosen(model, policies.split_fused(pieces={label: 1}))
    assert whole == chosen(model, "muon")


def test_heads_that_do_not_make_up_the_rows_are_refused_even_where_thirds_would() -> None:
    attention = Attention(2, 1)
    attention.qkv_proj = nn.Linear(8, 24, bias=False)
    with pytest.raises(ValueError, match="which has 24 outputs for 8 inputs"):
        chosen(model_of(attention=attention), policies.split_fused())


def test_pieces_can_be_given_by_the_name_of_a_module() -> None:
    model = model_of(mixed=nn.Linear(8, 20))
    found = chosen(model, policies.split_fused("muon", {"mixed": (12, 4, 4)}))["mixed.weight"]
    assert found.norm == norms.Split(spectral(), (12, 4, 4), dim=-2)
    with pytest.raises(ValueError, match=r"pieces\['mixed'\] must make up the 20 outputs of"):
        chosen(model, policies.split_fused("muon", {"mixed": (12, 4)}))
    with pytest.raises(ValueError, match="pieces must be a"):
        policies.split_fused("muon", {"mixed": 0})


def test_pairs_are_doubted_as_without_it() -> None:
    pairs = list(model_of(hidden=nn.Linear(8, 8)).named_parameters())
    with pytest.warns(UserWarning, match=r"policy 'muon' treats embeddings differently"):
        DropMuon(pairs, policy=policies.split_fused("muon"))


def test_a_step_moves_the_pieces_by_the_orthogonaliser_of_the_optimizer() -> None:
    model = model_of(attention=Attention(2, 1))
    weight = model["attention"].qkv_proj.weight
    policy = policies.split_fused("spectral")
    optimizer = DropMuon(model, lr=0.5, policy=policy, orthogonalize="svd", sampler="full")
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for piece in (weight.detach() - before).split([8, 4, 4]):
        values = torch.linalg.svdvals(piece)
        torch.testing.assert_close(values, torch.full_like(values, 0.5))


def test_a_name_that_no_parameter_has_is_refused_wherever_the_model_is_known() -> None:
    model = model_of(attention=Attention(4, 1))
    policy = policies.split_fused(policies.split_fused("muon", {"qvk_proj": (16, 4, 4)}))
    pairs = [{"params": list(model.parameters())}]
    for call in (
        lambda: layer_groups(model, policy=policy),
        lambda: DropMuon(model, policy=policy),
        lambda: DropMuon(pairs, model=model, policy=policy),
    ):
        with pytest.raises(ValueError, match="got 'qvk_proj'; did you mean 'qkv_proj'"):
            call()


def test_names_of_frozen_and_of_other_parameters_are_not_misspelt() -> None:
    model = model_of(attention=Attention(4, 1))
    model["attention"].requires_grad_(False)
    assert layer_groups(model, policy=policies.split_fused("muon", {"qkv_proj": 3, "bias": 1}))
