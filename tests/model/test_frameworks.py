"""Norms on real architectures: tiny, random models of the transformers library."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, layer_groups, norms, policies
from dropmuon.model.layers import model_layers
from dropmuon.model.roster import Member
from tests.model.framework_models import tiny_model
from tests.step.small_steps import same_bits


def routed(
    model: nn.Module, policy: Any = "muon", orthogonalize: Any = "svd", **options: Any
) -> dict[str, Member]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tied parameters
        members = list(model_layers(model, **options).members())
    policies.route(members, policy, orthogonalize)
    return {member.name: member for member in members}


def top_singular_values(member: Member, g: Tensor | None = None) -> Tensor:
    """The largest singular value of a step, for each matrix of a stack."""
    assert isinstance(member.norm, norms.Norm)
    g = torch.randn_like(member.parameter) if g is None else g
    values: Tensor = torch.linalg.matrix_norm(member.norm.unit_direction(g), ord=2)
    return values


def test_the_shape_scales_of_gpt2_are_those_of_its_linear_maps() -> None:
    members = routed(tiny_model("GPT-2"))
    block = "transformer.h.0"
    for name, scale in {
        f"{block}.mlp.c_fc.weight": 2.0,
        f"{block}.mlp.c_proj.weight": 1.0,
        f"{block}.attn.c_attn.weight": 3.0**0.5,
        f"{block}.attn.c_proj.weight": 1.0,
    }.items():
        assert float(top_singular_values(members[name])) == pytest.approx(scale), name


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("Mixtral", "model.layers.0.mlp.experts"),
        ("GPT-OSS", "model.layers.0.mlp.experts"),
        ("Llama 4", "model.layers.0.feed_forward.experts"),
    ],
)
def test_each_expert_is_orthogonalised_with_the_scale_of_its_map(name: str, experts: str) -> None:
    members = routed(tiny_model(name))
    up, down = members[f"{experts}.gate_up_proj"], members[f"{experts}.down_proj"]
    torch.testing.assert_close(top_singular_values(up), torch.full((4,), 2.0))
    torch.testing.assert_close(top_singular_values(down), torch.ones(4))
    (expert, *_) = torch.randn_like(down.parameter)
    step = down.norm.unit_direction(torch.stack([expert] * 4))
    cosine = torch.nn.functional.cosine_similarity(step[0].flatten(), expert.flatten(), dim=0)
    assert float(cosine) < 0.97, "not the plain gradient"


@pytest.mark.parametrize(
    ("name", "last"),
    [("GPT-2 without a head", "h.1."), ("BERT without a head", "encoder.layer.1.")],
)
def test_a_model_without_a_head_keeps_its_last_block_on_muon(name: str, last: str) -> None:
    members = routed(tiny_model(name), by="block")
    inside = [m for m in members.values() if m.name.startswith(last) and m.is_matrix]
    assert len(inside) >= 4
    assert all(isinstance(m.norm, norms.Norm) for m in inside)
    assert not any(m.is_output for m in members.values())


def test_the_head_of_bert_for_masked_tokens_is_its_embedding() -> None:
    members = routed(tiny_model("BERT for masked tokens"))
    tied = members["cls.predictions.decoder.weight"]
    assert tied.tied
    assert [each.name for each in tied.lookups] == ["bert.embeddings.word_embeddings"]
    assert isinstance(members["cls.predictions.transform.dense.weight"].norm, norms.Norm)


def test_a_pooler_is_hidden() -> None:
    members = routed(tiny_model("ViT without a head"))
    assert isinstance(members["pooler.dense.weight"].norm, norms.Norm)


def test_by_use_as_by_registration() -> None:
    tokens = torch.zeros(1, 3, dtype=torch.long)
    for name in ("GPT-2", "Llama", "Mixtral", "BERT"):
        model = tiny_model(name)
        taken = {key: member.taken_for for key, member in routed(model).items()}
        by_use = routed(model, example={"input_ids": tokens})
        assert {key: member.taken_for for key, member in by_use.items()} == taken


def test_fused_matrices_of_real_models_are_split_or_refused() -> None:
    split = policies.split_fused("muon")
    members = routed(tiny_model("Phi-3"), split)
    base = norms.Spectral("svd", scale="muon")
    assert members["model.layers.0.self_attn.qkv_proj.weight"].norm == norms.Split(
        base, (32, 16, 16), dim=-2
    )
    assert members["model.layers.0.mlp.gate_up_proj.weight"].norm == norms.Split(base, 2, dim=-2)
    members = routed(tiny_model("GPT-2"), split)
    assert members["transformer.h.0.attn.c_attn.weight"].norm == norms.Transposed(
        norms.Split(base, 3, dim=-2)
    )
    batch = norms.Spectral("svd", scale="muon", blocks="batch")
    members = routed(tiny_model("Mixtral"), split)
    assert members["model.layers.0.mlp.experts.gate_up_proj"].norm == norms.Split(batch, 2, dim=-2)
    for name, why in [("GPT-NeoX", "head by head"), ("GPT-OSS", "one half after the other")]:
        with pytest.raises(ValueError, match=why):
            routed(tiny_model(name), split)


@pytest.mark.parametrize("name", ["Mixtral", "GPT-OSS"])
def test_experts_of_a_real_model_that_see_no_token_keep_still(name: str) -> None:
    """Two tokens reach at most four experts of a layer of four, with two each: often fewer."""
    model = tiny_model(name)
    optimizer = DropMuon(model, lr=0.01, policy="muon", weight_decay=0.1, sampler="full")
    rested = moved = 0
    for step in range(6):
        tokens = torch.randint(50, (1, 2), generator=torch.Generator().manual_seed(step))
        model(input_ids=tokens, labels=tokens).loss.backward()
        stacks = [m.parameter for m in optimizer.roster.members() if m.experts > 1]
        before = [stack.detach().clone() for stack in stacks]
        idle = [~(p.grad != 0).flatten(1).any(1) for p in stacks]
        optimizer.step()
        optimizer.zero_grad()
        for stack, old, without in zip(stacks, before, idle, strict=True):
            still = [same_bits(old[e], stack.detach()[e]) for e in range(len(stack))]
            assert still == without.tolist()
            rested, moved = rested + sum(still), moved + len(still) - sum(still)
    assert rested
    assert moved


def test_groups_made_from_a_model_know_its_experts_too() -> None:
    for name in ("Mixtral", "GPT-OSS"):
        model = tiny_model(name)
        whole = DropMuon(model, policy="muon").roster.members()
        groups = DropMuon(layer_groups(model, policy="muon")).roster.members()
        counts = {member.name: (member.experts, member.norm) for member in whole}
        assert {member.name: (member.experts, member.norm) for member in groups} == counts
        assert 4 in {count for count, _ in counts.values()}


def test_the_table_says_what_each_parameter_was_taken_for() -> None:
    model = tiny_model("Mixtral")
    text = DropMuon(model, policy="muon").describe()
    for words in ("taken for", "embedding", "4 experts", "matrix", "normalisation", "output layer"):
        assert words in text
