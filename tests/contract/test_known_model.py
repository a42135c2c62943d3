"""Parameters without names whose model is known: added later, or given with `model=`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, norms, samplers


class Net(nn.Module):
    """A stem, three blocks of two modules each, and a head, registered in another order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 2)
        self.stem = nn.Linear(3, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.head(x)
        return found


X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def train(model: nn.Module, optimizer: DropMuon, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()


def routing(optimizer: DropMuon) -> dict[str, tuple[str, str]]:
    """The layer and the norm of every parameter, by name."""
    return {
        member.name: (optimizer.layers[member.layer], str(member.norm))
        for member in optimizer.roster.members()
    }


def frozen_at_first(**options: Any) -> tuple[Net, DropMuon]:
    """Return an optimizer in mid-training whose model's blocks were frozen when it was made."""
    model = Net()
    model.blocks.requires_grad_(False)
    optimizer = DropMuon(model, lr=0.02, example=X, **options)
    assert len(optimizer.layers) == 2
    train(model, optimizer, 3)
    model.blocks.requires_grad_(True)
    return model, optimizer


@pytest.mark.parametrize("by", ["module", "block"])
@pytest.mark.parametrize("policy", ["spectral", "muon", "scion"])
def test_what_is_unfrozen_later_gets_the_place_and_norm_it_would_have_had(
    by: Any, policy: Any
) -> None:
    model, optimizer = frozen_at_first(by=by, policy=policy)
    optimizer.add_param_group({"params": list(model.blocks.parameters())})
    whole = DropMuon(Net(), lr=0.02, example=X, by=by, policy=policy)
    assert optimizer.layers == whole.layers
    assert routing(optimizer) == routing(whole)
    rates = {n: g["lr"] for g in optimizer.param_groups for n in g["param_names"]}
    assert rates == {n: g["lr"] for g in whole.param_groups for n in g["param_names"]}
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1)
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_blocks_may_be_unfrozen_one_after_the_other_from_the_top() -> None:
    model, optimizer = frozen_at_first(by="block", sampler=samplers.Serial())
    model.blocks.requires_grad_(False)
    for n in (2, 1, 0):
        model.blocks[n].requires_grad_(True)
        optimizer.add_param_group({"params": model.blocks[n].parameters()})
        train(model, optimizer, 2)
    assert optimizer.layers == ("stem", "blocks.0", "blocks.1", "blocks.2", "head")
    train(model, optimizer, 20)
    assert all(count > 0 for count in optimizer.state_dict()["dropmuon"]["has_gradient"])


def test_settings_of_an_added_group_hold_and_its_rate_is_that_of_norms() -> None:
    model, optimizer = frozen_at_first(policy="muon", adamw_lr=0.001)
    count = len(optimizer.param_groups)
    optimizer.add_param_group({"params": model.blocks.parameters(), "lr": 0.002, "momentum": 0.7})
    added = optimizer.param_groups[count:]
    rates = {type(group["norm"]): group["lr"] for group in added}
    assert rates == {norms.Spectral: 0.002, norms.AdamW: pytest.approx(0.0001)}
    assert {group["momentum"] for group in added} == {0.7}
    assert {group["weight_decay"] for group in added} == {0.0}


def test_a_layer_or_a_norm_of_an_added_group_holds() -> None:
    model, optimizer = frozen_at_first()
    optimizer.add_param_group({"params": model.blocks[0].parameters(), "layer": "stem"})
    optimizer.add_param_group({"params": model.blocks[1].parameters(), "norm": "sign"})
    assert optimizer.layers == ("stem", "blocks.1.0", "blocks.1.1", "blocks.1.2", "head")
    found = routing(optimizer)
    assert found["blocks.0.2.weight"][0] == "stem"
    assert found["blocks.1.2.weight"][1] == str(norms.Sign())


def test_a_module_that_is_new_in_the_model_follows_what_precedes_it() -> None:
    model, optimizer = frozen_at_first(by="module")
    optimizer.add_param_group({"params": model.blocks.parameters()})
    model.blocks[1].add_module("extra", nn.Linear(4, 4))
    optimizer.add_param_group({"params": model.blocks[1].extra.parameters()})
    place = optimizer.layers.index("blocks.1.extra")
    assert optimizer.layers[place - 1] == "blocks.1.2"
    assert routing(optimizer)["blocks.1.extra.weight"][1].startswith("Spectral")


def test_what_is_not_in_the_model_comes_last_under_its_own_name() -> None:
    _, optimizer = frozen_at_first()
    optimizer.add_param_group({"params": [("late.shift", nn.Parameter(torch.zeros(2)))]})
    assert optimizer.layers == ("stem", "head", "late")


def test_a_mixed_group_that_does_not_fit_changes_nothing() -> None:
    model, optimizer = frozen_at_first(sampler=samplers.Serial([0.5, 0.5]))
    before, text = len(optimizer.param_groups), str(optimizer)
    with pytest.raises(ValueError, match="momentum must be"):
        optimizer.add_param_group({"params": model.blocks.parameters(), "momentum": 2.0})
    with pytest.raises(ValueError, match="probabilities must have 11 entries"):
        optimizer.add_param_group({"params": model.blocks.parameters()})
    nameless = [*model.blocks.parameters(), nn.Parameter(torch.zeros(2))]
    with pytest.raises(ValueError, match=r"of shape \(2,\) that is not in the model; give it as a"):
        optimizer.add_param_group({"params": nameless})
    assert (len(optimizer.param_groups), str(optimizer)) == (before, text)
    train(model, optimizer, 3)


def test_a_run_in_which_layers_were_added_can_be_resumed() -> None:
    ends = []
    for resumes in (False, True):
        model, optimizer = frozen_at_first(by="block", policy="muon")
        optimizer.add_param_group({"params": model.blocks.parameters(), "lr": 0.01})
        train(model, optimizer, 4)
        if resumes:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model, optimizer = frozen_at_first(by="block", policy="muon")
            optimizer.add_param_group({"params": model.blocks.parameters(), "lr": 0.01})
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        train(model, optimizer, 6)
        ends.append((optimizer.active, model.state_dict()))
    assert ends[0][0] == ends[1][0]
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=0, atol=0)


def decayed_and_not(model: nn.Module) -> list[dict[str, Any]]:
    """Return groups as `transformers.Trainer` makes them: matrices first, vectors after."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def test_groups_without_names_are_found_in_the_model_and_keep_their_decay() -> None:
    model = Net()
    options: dict[str, Any] = {"lr": 0.02, "example": X, "by": "block", "policy": "muon"}
    optimizer = DropMuon(decayed_and_not(model), model=model, **options)
    whole = DropMuon(Net(), **options)
    assert optimizer.layers == whole.layers
    assert routing(optimizer) == routing(whole)
    for group in optimizer.param_groups:
        dimensions = {parameter.ndim for parameter in group["params"]}
        assert group["weight_decay"] == (0.1 if dimensions == {2} else 0.0)
        assert group["lr"] == (3e-4 if isinstance(group["norm"], norms.AdamW) else 0.02)


@pytest.mark.parametrize(
    "given",
    [
        lambda model: model.parameters(),
        lambda model: model.named_parameters(),
        lambda model: [{"params": model.parameters()}],
    ],
    ids=["tensors", "pairs", "group"],
)
def test_parameters_in_any_form_are_found_in_the_model(given: Any) -> None:
    model = Net()
    optimizer = DropMuon(given(model), model=model, example=X, policy="muon")
    assert routing(optimizer) == routing(DropMuon(Net(), example=X, policy="muon"))


def test_some_parameters_of_a_model_are_those_layers_only() -> None:
    model = Net()
    optimizer = DropMuon(model.blocks.parameters(), model=model, by="block", example=X)
    assert optimizer.layers == ("blocks.0", "blocks.1", "blocks.2")


def test_groups_without_names_or_order_cause_a_warning() -> None:
    with pytest.warns(UserWarning, match="order is not that of the model.* Give model=model"):
        DropMuon(decayed_and_not(Net()), policy="spectral")


@pytest.mark.parametrize(
    "given",
    [
        lambda model: model.parameters(),
        lambda model: [{"params": list(model.stem.parameters())}, {"params": [model.head.bias]}],
        lambda model: [{"params": list(block.parameters())} for block in model.blocks],
        lambda model: [{**group, "layer": n} for n, group in enumerate(decayed_and_not(model))],
    ],
    ids=["tensors", "one vector", "blocks", "layers"],
)
def test_groups_in_an_order_that_may_be_the_model_s_cause_none(
    given: Any, recwarn: pytest.WarningsRecorder
) -> None:
    DropMuon(given(Net()))
    assert not recwarn.list


# Names of groups


@pytest.mark.parametrize("by", ["module", "block"])
def test_every_group_has_a_name_of_its_own(by: Any) -> None:
    model, optimizer = frozen_at_first(by=by, policy="muon")
    optimizer.add_param_group({"params": model.blocks[0].parameters()})
    optimizer.add_param_group({"params": model.blocks[1].parameters(), "layer": "head"})
    names = [group["name"] for group in optimizer.param_groups]
    assert len(set(names)) == len(names)
    for group in optimizer.param_groups:
        assert group["name"].startswith(str(group["layer"]))


def test_names_of_groups_say_what_norm_where_a_layer_has_several() -> None:
    names = [g["name"] for g in DropMuon(Net(), example=X, by="block").param_groups]
    assert names[:2] == ["stem/spectral", "stem/euclidean"]
    assert [g["name"] for g in DropMuon(Net(), policy="sign").param_groups][:2] == ["head", "stem"]


def test_a_state_from_before_groups_had_names_loads_and_leaves_the_names() -> None:
    optimizer = DropMuon(Net())
    names = [group["name"] for group in optimizer.param_groups]
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["name"]
    optimizer.load_state_dict(state)
    assert [group["name"] for group in optimizer.param_groups] == names
