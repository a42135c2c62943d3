"""torch.optim.Muon and AdamW as one method: who moves what, and in which precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import presets
from dropmuon.lab.models import build, item_of
from dropmuon.lab.torch_muon import TorchMuon

SETTINGS: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return build("cnn", (1, 8, 8), 3, (4, 6), batch_norm=True)


def gpt() -> nn.Sequential:
    torch.manual_seed(0)
    return build("gpt", (8,), 11, (32, 32))


def take_steps(
    model: nn.Module, optimizer: TorchMuon | torch.optim.Optimizer, steps: int = 3
) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        if "embedding" in dict(model.named_children()):
            inputs = torch.randint(0, 11, (4, 8), generator=generator)
            targets = torch.randint(0, 11, (4, 8), generator=generator)
        else:
            inputs = torch.randn(5, 1, 8, 8, generator=generator)
            targets = torch.randint(0, 3, (5,), generator=generator)
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def owners(model: nn.Module, optimizer: TorchMuon) -> dict[str, str]:
    """Which of the two optimizers moves each parameter, told by its memory."""
    muon = {p.data_ptr() for group in optimizer.muon.param_groups for p in group["params"]}
    adamw = {p.data_ptr() for group in optimizer.adamw.param_groups for p in group["params"]}
    assert not muon & adamw
    places = {True: "muon", False: "adamw"}
    for _, parameter in model.named_parameters():
        assert parameter.data_ptr() in muon | adamw
    return {name: places[p.data_ptr() in muon] for name, p in model.named_parameters()}


def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw() -> None:
    model = cnn()
    found = owners(model, TorchMuon(model))
    assert {name for name, owner in found.items() if owner == "muon"} == {
        "conv1.0.weight",
        "conv2.0.weight",
    }
    model = gpt()
    found = owners(model, TorchMuon(model))
    hidden = {name for name, owner in found.items() if owner == "muon"}
    assert hidden == {
        f"block{k}.{part}.weight" for k in (1, 2) for part in ("mix", "out", "up", "down")
    }


def test_learning_rates_and_decay_are_torchs_own_unless_given() -> None:
    plain = TorchMuon(cnn())
    assert (plain.muon.defaults["lr"], plain.muon.defaults["momentum"]) == (0.02, 0.95)
    assert plain.adamw.defaults["lr"] == 3e-4
    assert (plain.muon.defaults["weight_decay"], plain.adamw.defaults["weight_decay"]) == (
        0.1,
        0.01,
    )
    given = TorchMuon(cnn(), 0.1, 0.2, weight_decay=0.3, momentum=0.4)
    assert (given.muon.defaults["lr"], given.adamw.defaults["lr"]) == (0.1, 0.2)
    assert (given.muon.defaults["weight_decay"], given.adamw.defaults["weight_decay"]) == (0.3, 0.3)
    assert given.muon.defaults["momentum"] == 0.4


@pytest.mark.parametrize("make", [cnn, gpt])
def test_it_moves_as_the_preset_of_the_same_method_does(make: Callable[[], nn.Sequential]) -> None:
    """Two implementations of Muon with AdamW: torch's, and ours."""
    model = make()
    start, other = copy.deepcopy(model), copy.deepcopy(model)
    take_steps(model, TorchMuon(model, 0.02, 3e-3, betas=(0.9, 0.95), **SETTINGS))
    take_steps(other, presets.muon(other, 0.02, by=item_of, adamw_lr=3e-3, **SETTINGS))
    for (name, mine), theirs, before in zip(
        model.named_parameters(), other.parameters(), start.parameters(), strict=True
    ):
        assert not torch.equal(mine, before), name
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5, msg=name)


def test_nothing_is_cast_to_bfloat16_on_a_cpu_and_casts_work_again_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = set()
    product = torch.addmm

    def noted(x: Tensor, *rest: Any, **scales: Any) -> Any:
        kinds.add(x.dtype)
        return product(x, *rest, **scales)

    monkeypatch.setattr(torch, "addmm", noted)
    model = cnn()
    take_steps(model, TorchMuon(model), 1)
    assert kinds == {torch.float32}
    assert torch.ones(1).bfloat16().dtype == torch.bfloat16


def test_a_restored_state_continues_bit_for_bit() -> None:
    model = cnn()
    optimizer = TorchMuon(model)
    take_steps(model, optimizer)
    again = copy.deepcopy(model)
    restored = TorchMuon(again)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(model, optimizer)
    take_steps(again, restored)
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_layer_without_a_gradient_stays() -> None:
    model = cnn()
    before = copy.deepcopy(model.state_dict())
    optimizer = TorchMuon(model, weight_decay=0.0)
    model.get_parameter("conv2.0.weight").grad = torch.ones(6, 4, 3, 3)
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"conv2.0.weight"}


def test_the_order_of_channels_in_memory_changes_nothing() -> None:
    last = cnn()
    first = copy.deepcopy(last)
    first.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    assert not last.get_parameter("conv2.0.weight").is_contiguous()
    for model in (last, first):
        take_steps(model, TorchMuon(model, lr=0.1))
    for one, other in zip(last.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
