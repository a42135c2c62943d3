"""Which norm for which parameter, and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dropmuon import DropMuon, layer_groups, norms
from dropmuon.model.policies import POLICIES, Choice, Member, choose


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(6, 1, 1))


class Zoo(nn.Module):
    """One of each kind, hidden ones first and an output layer last."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.bag = nn.EmbeddingBag(7, 6)
        self.conv = nn.Conv2d(4, 6, 3)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6)
        self.conv1d = nn.Conv1d(4, 6, 5)
        self.transposed = nn.ConvTranspose2d(6, 4, 2)
        self.batch_norm = nn.BatchNorm2d(6)
        self.layer_norm = nn.LayerNorm(6)
        self.scale = LayerScale()
        self.linear = nn.Linear(6, 8)
        self.output = nn.Linear(8, 3)


VECTORS = ("conv.bias", "batch_norm.weight", "layer_norm.bias", "linear.bias", "output.bias")


def chosen(policy, model=None, **options):
    groups = layer_groups(model or Zoo(), policy=policy, **options)
    return {
        name: Choice(group["norm"], group["reason"])
        for group in groups
        for name, _ in group["params"]
    }


def spectral(scale=1.0, blocks=1, orthogonalize="newton-schulz"):
    return norms.Spectral(orthogonalize=orthogonalize, scale=scale, blocks=blocks)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_parameter_gets_a_norm_and_a_reason_in_words(policy):
    found = chosen(policy)
    assert set(found) == {name for name, _ in Zoo().named_parameters()}
    for name, choice in found.items():
        assert isinstance(choice.norm, norms.Norm | norms.AdamW), name
        assert isinstance(choice.reason, str), name
        assert choice.reason.strip(), name


HIDDEN = {
    "conv.weight": (1, "a convolution, as a matrix (out, in*kernel)"),
    "grouped.weight": (2, "a convolution of 2 groups: block-diagonal"),
    "depthwise.weight": (6, "a convolution of 6 groups: block-diagonal"),
    "conv1d.weight": (1, "a convolution, as a matrix (out, in*kernel)"),
    "linear.weight": (1, "a matrix"),
}


def test_spectral_is_the_papers_matrices_spectral_vectors_euclidean():
    found = chosen("spectral")
    for name, (blocks, reason) in HIDDEN.items():
        assert found[name] == Choice(spectral(blocks=blocks), reason), name
    for name in ("embedding.weight", "bag.weight", "output.weight"):
        assert found[name] == Choice(spectral(), "a matrix"), name
    for name in VECTORS:
        assert found[name] == Choice(norms.Euclidean(), "a vector"), name


def test_muon_orthogonalises_hidden_matrices_and_gives_the_rest_to_adamw():
    found = chosen("muon")
    for name, (blocks, reason) in HIDDEN.items():
        assert found[name] == Choice(spectral("muon", blocks), f"hidden: {reason}"), name
    for name in ("embedding.weight", "bag.weight"):
        assert found[name] == Choice(norms.AdamW(), "an embedding"), name
    assert found["output.weight"] == Choice(norms.AdamW(), "the output layer")
    for name in VECTORS:
        assert found[name] == Choice(norms.AdamW(), "a vector"), name


def test_scion_is_rms_inside_and_one_to_infinity_at_both_ends():
    found = chosen("scion")
    for name, (blocks, reason) in HIDDEN.items():
        assert found[name].norm == spectral("rms", blocks), name
        assert found[name].reason == f"hidden: {reason}, RMS->RMS", name
    for name in ("embedding.weight", "bag.weight"):
        assert found[name].norm == norms.Sign(), name
        assert "embedding" in found[name].reason
    assert found["output.weight"].norm == norms.Sign(scale="mean-in")
    assert "output" in found["output.weight"].reason
    for name in VECTORS:
        assert found[name].norm == norms.Euclidean(scale="rms"), name


@pytest.mark.parametrize(
    ("policy", "norm"), [("euclidean", norms.Euclidean()), ("sign", norms.Sign())]
)
def test_one_geometry_for_all_is_one_geometry_for_all(policy, norm):
    assert {choice.norm for choice in chosen(policy).values()} == {norm}


@pytest.mark.parametrize("policy", ["spectral", "muon", "scion"])
def test_a_layer_scale_of_shape_c_1_1_is_a_vector_and_not_a_convolution(policy):
    found = chosen(policy)
    assert found["scale.gamma"] == found["layer_norm.weight"]


@pytest.mark.parametrize("policy", ["muon", "scion"])
def test_only_the_last_layer_in_order_is_the_output(policy):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    found = chosen(policy, model)
    assert [name for name, choice in found.items() if "output" in choice.reason] == ["2.weight"]

    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 2), nn.Linear(3, 4)

        def forward(self, x):
            return self.last(self.first(x))

    ordered = chosen(policy, Backwards(), example=torch.ones(1, 3))
    assert "output" in ordered["last.weight"].reason
    assert "output" not in ordered["first.weight"].reason


@pytest.mark.parametrize("policy", ["muon", "scion"])
def test_an_output_layer_cut_as_a_block_does_not_make_hidden_matrices_outputs(policy):
    """The head of a transformer by block is its final norm and projection: one matrix."""
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    model.norm, model.head = nn.LayerNorm(4), nn.Linear(4, 9)
    found = chosen(policy, model, by="block")
    assert [name for name, choice in found.items() if "output" in choice.reason] == ["head.weight"]


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_a_grouped_convolution_steps_by_one_orthogonal_matrix_per_group(groups):
    conv = nn.Conv2d(6, 12, 2, groups=groups, bias=False)
    choice = chosen("spectral", conv, orthogonalize="svd")["weight"]
    gradient = torch.randn(conv.weight.shape, generator=torch.Generator().manual_seed(0))
    step = choice.norm.lmo(gradient, 1.0).reshape(groups, 12 // groups, -1)
    for block in step:
        values = torch.linalg.svdvals(block)
        torch.testing.assert_close(values, torch.ones_like(values))


@pytest.mark.parametrize("policy", ["spectral", "muon", "scion"])
def test_a_transposed_convolution_is_a_hidden_matrix_like_others(policy):
    found = chosen(policy)
    assert isinstance(found["transposed.weight"].norm, norms.Spectral)
    assert found["transposed.weight"].norm.blocks == 1
    assert "convolution" in found["transposed.weight"].reason


def test_orthogonalize_reaches_every_spectral_norm():
    found = chosen("spectral", orthogonalize="svd")
    assert found["linear.weight"].norm == spectral(orthogonalize="svd")
    assert found["linear.weight"].norm != spectral()


def test_a_callable_policy_sees_the_site_and_may_answer_in_three_ways():
    seen = []

    def policy(member):
        seen.append(member)
        if member.is_embedding:
            return "row-wise"
        if not member.is_matrix:
            return norms.Sign()
        return Choice(norms.ColumnWise(), f"layer {member.layer} of {member.num_layers}")

    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    found = chosen(policy, model)
    assert found["0.weight"] == Choice(norms.RowWise(), "chosen by your policy")
    assert found["1.weight"] == Choice(norms.ColumnWise(), "layer 1 of 2")
    assert found["1.bias"] == Choice(norms.Sign(), "chosen by your policy")
    assert [member.name for member in seen] == ["0.weight", "1.weight", "1.bias"]
    assert seen[0].module is model[0]
    assert seen[0].parameter is model[0].weight
    assert [member.is_output for member in seen] == [False, True, False]
    assert "chosen by your policy" in str(DropMuon(model, policy=policy))


def test_a_callable_policy_names_spectral_norms_with_the_given_orthogonaliser():
    found = chosen(lambda member: "spectral", nn.Linear(2, 2), orthogonalize="svd")
    assert found["weight"].norm == spectral(orthogonalize="svd")


def test_a_policy_that_is_neither_a_name_nor_callable_is_refused():
    with pytest.raises(TypeError, match="policy must be a name or a callable of a Member, got int"):
        layer_groups(nn.Linear(2, 2), policy=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"norm must be one of .*did you mean 'spectral'"):
        layer_groups(nn.Linear(2, 2), policy=lambda member: "spectrall")


def test_a_site_without_a_module_goes_by_shape():
    member = Member("w", torch.ones(4, 3, 2, 2), None, 0, 2)
    assert choose("spectral", member, "svd").norm == spectral(orthogonalize="svd")
    assert choose("muon", Member("b", torch.ones(4), None, 0, 2), "svd").norm == norms.AdamW()


def test_adamw_parameters_get_their_own_learning_rate():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    optimizer = DropMuon(model, lr=0.02, policy="muon", adamw_lr=0.003)
    for group in optimizer.param_groups:
        is_adamw = isinstance(group["norm"], norms.AdamW)
        assert group["lr"] == (0.003 if is_adamw else 0.02), group["param_names"]
    assert {type(group["norm"]) for group in optimizer.param_groups} == {
        norms.AdamW,
        norms.Spectral,
    }


class Tokens(nn.Module):
    """An embedding, a hidden matrix, a vector and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)


def norms_of(optimizer: DropMuon) -> dict[str, str]:
    return {member.name: str(member.norm) for member in optimizer.roster.members()}


@pytest.mark.parametrize("policy", ["muon", "scion"])
def test_pairs_are_routed_as_the_model_where_that_can_be_known(policy):
    model = Tokens()
    with pytest.warns(UserWarning, match="'embed.weight', 'hidden.weight' are embeddings"):
        pairs = DropMuon(model.named_parameters(), policy=policy)
    whole = norms_of(DropMuon(model, policy=policy))
    apart = {name for name, norm in norms_of(pairs).items() if norm != whole[name]}
    assert apart == {"embed.weight"}


def test_pairs_of_convolutions_and_vectors_leave_nothing_to_doubt(recwarn):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    pairs = DropMuon(model.named_parameters(), policy="muon")
    assert norms_of(pairs) == norms_of(DropMuon(model, policy="muon"))
    assert not recwarn.list


class Grouped(nn.Module):
    """Whole, grouped, depthwise and pointwise convolutions, and things that look like them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.pointwise = nn.Conv2d(8, 16, 1)
        self.shortcut = nn.Conv2d(8, 16, 1)
        self.positions = nn.Parameter(torch.ones(1, 5, 16))
        self.scale = LayerScale()
        self.head = nn.Linear(16, 2)


@pytest.mark.parametrize("policy", ["spectral", "muon", "scion"])
def test_pairs_of_convolutions_that_may_have_groups_are_named(policy):
    model = Grouped()
    with pytest.warns(UserWarning, match="each group of a convolution") as caught:
        pairs = DropMuon(model.named_parameters(), policy=policy)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "cannot tell whether 'grouped.weight', 'depthwise.weight' have groups" in message
    assert f"layer_groups(model, policy={policy!r})" in message
    whole = norms_of(DropMuon(model, policy=policy))
    apart = {name for name, norm in norms_of(pairs).items() if norm != whole[name]}
    assert apart == {"grouped.weight", "depthwise.weight"}


@pytest.mark.parametrize(
    "first",
    [nn.Conv1d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 3, groups=2), nn.Conv3d(6, 4, 2, groups=2)],
    ids=["depthwise", "two groups", "three channels each"],
)
def test_a_first_convolution_is_doubted_unless_it_may_read_an_image(first, recwarn):
    DropMuon(nn.Sequential(first, nn.Flatten(), nn.Linear(4, 2)).named_parameters())
    messages = [str(each.message) for each in recwarn.list]
    doubted = ["'0.weight' have groups" in message for message in messages]
    assert doubted == ([] if first.weight.shape[1] == 3 else [True])


@pytest.mark.parametrize(
    "groups",
    [
        lambda model: list(model.parameters()),
        lambda model: [{"params": list(model.parameters())}],
        lambda model: [{"params": list(model.named_parameters()), "layer": "all"}],
    ],
    ids=["tensors", "one group", "a group of pairs"],
)
def test_tensors_and_groups_without_norms_are_doubted_as_pairs_are(groups):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4))
    with pytest.warns(UserWarning, match=r"cannot tell whether '(param2|1.weight)' have groups"):
        DropMuon(groups(model))


def test_a_norm_that_is_given_is_not_doubted(recwarn):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4))
    DropMuon(layer_groups(model))
    DropMuon([{"params": [model[1].weight], "norm": norms.Spectral(blocks=4)}])
    DropMuon(model.named_parameters(), policy=lambda member: norms.Spectral())
    assert not recwarn.list


@pytest.mark.parametrize("policy", ["euclidean", "sign"])
def test_policies_of_entries_say_nothing_of_groups(policy, recwarn):
    model = Grouped()
    pairs = DropMuon(model.named_parameters(), policy=policy)
    assert norms_of(pairs) == norms_of(DropMuon(model, policy=policy))
    assert not recwarn.list


@pytest.mark.parametrize("policy", ["spectral", "euclidean", "sign", lambda member: "sign"])
def test_policies_that_need_no_modules_say_nothing_of_pairs(policy, recwarn):
    DropMuon(Tokens().named_parameters(), policy=policy)
    assert not recwarn.list


def test_a_policy_sees_where_a_parameter_stands():
    seen = []
    model = Tokens()
    assert repr(Member("w", torch.ones(2))) == "Member(name='w', layer=0, num_layers=1)"

    def policy(member):
        seen.append(member)
        return "euclidean"

    DropMuon(model, policy=policy)
    assert [(m.name, m.module, m.layer, m.num_layers, m.is_output) for m in seen] == [
        ("embed.weight", model.embed, 0, 3, False),
        ("hidden.weight", model.hidden, 1, 3, False),
        ("hidden.bias", model.hidden, 1, 3, False),
        ("head.weight", model.head, 2, 3, True),
    ]
