"""States of earlier versions, and what a state holds."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dropmuon import DropMuon, layer_groups, presets, samplers


class Half(nn.Module):
    """Four layers, of which the loss uses three."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:3]:
            x = layer(x)
        return x


def train(model: nn.Module, optimizer: DropMuon, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def as_version_1(state: dict[str, Any]) -> dict[str, Any]:
    """The same state as release candidates before 0.1 wrote it."""
    state = copy.deepcopy(state)
    own = state["dropmuon"]
    full_step, known = own.pop("full_step"), own.pop("has_gradient")
    own["version"] = 1
    assert own.pop("parts") == 1
    (own["active"],) = own["active"]
    own["full_next"] = full_step == own["steps"]
    own["silent"] = [n for n, has in zip(own["layers"], known, strict=True) if has is False]
    return state


def test_a_state_of_version_3_moves_what_was_active() -> None:
    model = Half()
    optimizer = DropMuon(model, full_start=False)
    state = optimizer.state_dict()
    del state["dropmuon"]["moving"]
    state["dropmuon"]["version"] = 3
    other = DropMuon(Half(), full_start=False)
    other.load_state_dict(state)
    assert other.active == optimizer.active
    assert other.state_dict()["dropmuon"] == optimizer.state_dict()["dropmuon"]


@pytest.mark.filterwarnings("ignore:no gradient reached")
@pytest.mark.parametrize("full_start", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_state_of_version_1_continues_as_one_of_today(steps: int, full_start: bool) -> None:
    settings: dict[str, Any] = {
        "lr": 0.1,
        "sampler": samplers.Partition([(0,), (1, 3), (2,)]),
        "full_start": full_start,
    }
    model = Half()
    optimizer = DropMuon(model, **settings)
    train(model, optimizer, steps)
    ends = []
    for form in (copy.deepcopy, as_version_1):
        other = Half()
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        resumed = DropMuon(other, **settings)
        resumed.load_state_dict(form(optimizer.state_dict()))
        assert resumed.active == optimizer.active
        train(other, resumed, 6)
        ends.append((resumed.active, other.state_dict()))
    assert ends[0][0] == ends[1][0]
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:no gradient reached")
def test_a_layer_without_a_gradient_in_the_full_step_is_never_drawn_alone() -> None:
    model = Half()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), seed=1)
    train(model, optimizer, 1)
    seen = set()
    for _ in range(40):
        seen.add(optimizer.active)
        train(model, optimizer, 1)
    assert seen == {(0,), (1,), (2,), (2, 3)}


def test_a_set_activated_by_hand_is_for_one_step_and_leaves_the_full_step_to_come() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), seed=1)
    optimizer.activate([2, 1])
    chosen = optimizer.active
    assert chosen == (1, 2)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1)
    moved = {
        n.split(".")[0] for n, x in model.state_dict().items() if not torch.equal(before[n], x)
    }
    assert moved == {"1", "2"}
    still_to_come = optimizer.active
    assert still_to_come == (0, 1, 2, 3)
    train(model, optimizer, 1)
    assert len(optimizer.active) == 1
    optimizer.activate((0, 3))
    resumed = DropMuon(
        nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)]), sampler=samplers.Serial()
    )
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.active == (0, 3)


def test_a_layer_that_is_unfrozen_later_is_drawn_alone_as_any_other() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    model[1].requires_grad_(False)
    groups = layer_groups(model, include_frozen=True)
    optimizer = DropMuon(groups, lr=0.01, sampler=samplers.Serial(), seed=1)
    train(model, optimizer, 3)
    with optimizer.full():
        model.requires_grad_(True)
    seen = set()
    for _ in range(40):
        train(model, optimizer, 1)
        seen.add(optimizer.active)
    assert seen == {(0,), (1,), (2,)}


@pytest.mark.filterwarnings("ignore:step.. found no gradient")
@pytest.mark.parametrize("where", ["full", "outside"])
@pytest.mark.parametrize("seed", range(6))
def test_a_layer_frozen_between_backward_and_step_is_not_left_alone(seed: int, where: str) -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    optimizer = DropMuon(model, lr=0.01, sampler=samplers.Serial(), seed=seed)
    train(model, optimizer, 2)
    model(torch.ones(2, 3)).square().sum().backward()
    with optimizer.full() if where == "full" or 2 not in optimizer.active else nullcontext():
        model[2].requires_grad_(False)
    optimizer.step()
    optimizer.zero_grad()
    train(model, optimizer, 12)
    assert not any(parameter.requires_grad for parameter in model[2].parameters())


def test_freezing_before_the_first_step_is_no_silent_layer(
    recwarn: pytest.WarningsRecorder,
) -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    optimizer = DropMuon(model, lr=0.01)
    model[2].requires_grad_(False)
    train(model, optimizer, 6)
    assert not recwarn.list


@pytest.mark.filterwarnings("ignore:no gradient reached")
@pytest.mark.parametrize("seed", range(8))
def test_without_a_full_start_an_unused_layer_is_noticed_when_it_is_first_active(
    seed: int,
) -> None:
    model = Half()
    optimizer = presets.rpt(model, lr=0.01, seed=seed)
    if optimizer.active == (3,):  # nothing is known yet of a layer that is drawn first, and alone
        optimizer.activate((2, 3))
    train(model, optimizer, 30)
    assert optimizer.state_dict()["dropmuon"]["has_gradient"][3] is False


def test_a_set_of_numpy_integers_is_saved_as_plain_ones(tmp_path: Path) -> None:
    int_: Any = np.int64
    optimizer = DropMuon(Half(), total_steps=int_(10), seed=int_(3))
    optimizer.activate(np.array([1, 2]))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["dropmuon"]["active"] == [[1, 2]]


@pytest.mark.parametrize("layers", [[0.0], ["1"], [], [4], [-1], 3])
def test_what_cannot_be_activated_changes_nothing(layers: Any) -> None:
    optimizer = DropMuon(Half())
    with pytest.raises(ValueError, match="layers must"):
        optimizer.activate(layers)
    assert optimizer.active == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("active", []),
        ("active", [[]]),
        ("active", [[7]]),
        ("active", [["0"]]),
        ("steps", -5),
        ("seed", None),
        ("resample_every", 0),
        ("turns", 0),
        ("full_start", "never"),
        ("moving", []),
        ("has_gradient", [True]),
        ("moves", 3),
    ],
)
def test_a_damaged_field_changes_nothing(field: str, value: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = DropMuon(model, seed=1)
    saved = optimizer.state_dict()
    saved["dropmuon"][field] = value
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"state_dict: .* damaged"):
        optimizer.load_state_dict(saved)
    assert optimizer.state_dict() == before


def test_a_group_without_a_rate_changes_nothing() -> None:
    optimizer = DropMuon(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    saved = optimizer.state_dict()
    saved["param_groups"][-1]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr must be a finite number"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[-1]["lr"] == 0.1
