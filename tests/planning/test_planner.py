"""The whole way from a model to a recommendation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon
from dropmuon.planning import Plan, plan
from dropmuon.theory import Regime
from tests.planning.synthetic_plans import small_problem


@pytest.mark.parametrize("regime", [None, "smooth", "stochastic"])
def test_a_plan_is_made_read_saved_and_loaded(tmp_path: Path, regime: Regime | None) -> None:
    model, loss, batches = small_problem()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    seen: list[str] = []
    found = plan(
        model,
        loss,
        batches,
        budget=1.0,
        points=2,
        lr=0.02,
        regime=regime,
        on_progress=lambda what, share: seen.append(what),
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    stages = ["measuring costs", "measuring noise"]
    assert list(dict.fromkeys(seen)) == stages + ["estimating smoothness"] * (regime is not None)
    words = ("when all move", "Theorem rpt_p1") if regime else ("Measured: costs", "critical")
    for word in ("layer", "backward", "noise / signal", *words):
        assert word in str(found)
    found.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert str(loaded) == str(found)
    assert loaded.settings == found.settings
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]
    optimizer = DropMuon(model, lr=0.02, **found.settings)
    loss(model, batches[0]).backward()
    optimizer.step()


def test_without_a_regime_there_are_no_constants() -> None:
    found = plan(*small_problem(), budget=0.5, lr=0.02)
    for asked in ("smoothness", "step_rule"):
        with pytest.raises(ValueError, match=f"{asked} needs constants of .* regime='smooth'"):
            getattr(found, asked)


def test_the_run_is_no_longer_than_the_steps_to_plan_for() -> None:
    found = plan(*small_problem(), steps=7, budget=2.0, lr=0.02)
    assert found.noise is not None
    assert found.noise.steps == 7 == found.gains.horizon
    assert "Over a run of 7 steps, the noise" in str(found)


def test_an_unknown_regime_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="regime"):
        plan(*small_problem(), regime="1/eps2", budget=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", 0),
        ("budget", float("nan")),
        ("points", 0),
        ("steps", 0),
        ("updates_per_batch", 0),
        ("updates_per_batch", 1.5),
    ],
)
def test_arguments_are_checked_before_anything_is_measured(name: str, value: Any) -> None:
    model, _, batches = small_problem()

    def loss(model: nn.Module, batch: object) -> Tensor:
        raise AssertionError

    with pytest.raises(ValueError, match=f"{name} must be"):
        plan(model, loss, batches, **{name: value})


def test_a_loss_that_is_not_finite_is_refused_and_nothing_changes() -> None:
    model, _, batches = small_problem()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="loss"):
        plan(model, lambda m, batch: m(batch[0]).sum() * float("nan"), batches, budget=1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
