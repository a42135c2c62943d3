"""The whole way from a model to a recommendation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon, plan, samplers
from dropmuon.planning import MeasuredCosts, Plan
from dropmuon.planning.candidates import candidates, planned_sets
from dropmuon.planning.plan import recommend
from dropmuon.planning.smoothness import SmoothnessEstimate, summarize
from dropmuon.theory import StepCosts, against_full, optimal_progressive


def problem() -> tuple[nn.Module, Any, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    batches = [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(3)]
    return model, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]), batches


def made_up(full: list[float], alone: list[float], points: int = 4) -> Plan:
    """A plan for layers whose constants grow from `alone` to `full` with the active set."""
    b = len(full)
    ratios = {}
    for active in planned_sets(b):
        share = (len(active) - 1) / max(b - 1, 1)
        table = np.full((points, b), np.nan)
        for i in active:
            table[:, i] = alone[i] + share * (full[i] - alone[i])
        ratios[active] = table
    duals = np.ones((points, b))
    estimate = SmoothnessEstimate(
        tuple(f"layer{i}" for i in range(b)), *summarize(duals, ratios, 0.9, 0), ratios, duals, 0.9
    )
    parts = StepCosts(0.001, [0.002] * b, [0.004] * b, [0.001] * b)
    by_cutoff = np.array([0.001 + 0.002 * b + 0.005 * (b - s) for s in range(b)])
    costs = MeasuredCosts(estimate.layers, parts, parts, by_cutoff, by_cutoff, 5, 0.0)
    return recommend(costs, estimate, 2)


def test_a_plan_is_made_read_saved_and_loaded(tmp_path: Path) -> None:
    model, loss, batches = problem()
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
        on_progress=lambda what, share: seen.append(what),
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert set(seen) == {"measuring costs", "estimating smoothness"}
    for word in ("Predicted time", "layer", "backward", "L alone", "Theorem rpt_p1"):
        assert word in str(found)
    found.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert str(loaded) == str(found)
    assert loaded.sampler == found.sampler
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]
    optimizer = DropMuon(model, lr=0.02, sampler=found.sampler)
    loss(model, batches[0]).backward()
    optimizer.step()


def test_where_the_first_layer_has_the_largest_constant_dropping_gains_nothing() -> None:
    found = made_up(full=[4.0, 2.0, 1.0], alone=[4.0, 2.0, 1.0])
    assert found.full_update_is_optimal
    progressive = next(o for o in found.options if o.candidate.family == "progressive, optimal")
    assert progressive.fresh.speedup == pytest.approx(1.0)


def test_no_gain_is_said_and_full_updates_are_recommended() -> None:
    found = made_up(full=[4.0], alone=[4.0])
    assert not found.gain_expected
    assert found.sampler == samplers.Full()
    assert found.predicted_speedup == 1.0
    assert "No gain expected" in str(found)


def test_the_recommendation_is_the_option_with_the_least_cost_of_theory() -> None:
    found = made_up(full=[1.0, 3.0, 9.0, 9.0], alone=[0.5, 1.0, 2.0, 3.0])
    smoothness = found.smoothness.smooth
    fresh = found.costs.seconds.fresh()
    speedups = {
        each.family: 1 / against_full(each.sampler, fresh, smoothness).ratio
        for each in candidates(found.smoothness, fresh)
    }
    assert found.gain_expected
    assert found.best.candidate.family == max(speedups, key=lambda name: speedups[name])
    assert found.predicted_speedup == pytest.approx(max(speedups.values()))
    optimal = next(o for o in found.options if o.candidate.family == "progressive, optimal")
    matrix = smoothness.progressive_matrix(0)
    assert isinstance(optimal.candidate.sampler, samplers.Progressive)
    np.testing.assert_allclose(
        optimal.candidate.sampler.probabilities(4, 0.0), optimal_progressive(matrix)
    )


def test_intervals_hold_the_prediction() -> None:
    for option in made_up(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0]).options:
        for found in (option.fresh, option.reused):
            assert found.low <= found.speedup <= found.high


def test_the_figure_has_three_panels_and_is_written(tmp_path: Path) -> None:
    found = made_up(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    figure = found.plot(tmp_path / "plan.png")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Costs",
        "Constants",
        "Recommended sampler",
    ]
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', '{"format": 99}', "[1]"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"path .*plan.json"):
        Plan.load(path)


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    found = made_up(full=[1.0, 3.0], alone=[0.5, 1.0])
    path = tmp_path / "plan.json"
    found.save(path)
    old = path.read_text()
    broken = Plan(found.costs, found.smoothness, found.options, object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text() == old
    assert json.loads(old)["layers"] == ["layer0", "layer1"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("budget", [0, -1.0, float("nan")])
def test_a_budget_that_is_no_time_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="budget must be positive"):
        plan(*problem(), budget=budget)


def test_a_loss_that_is_not_finite_is_refused_and_nothing_changes() -> None:
    model, _, batches = problem()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="loss"):
        plan(model, lambda m, batch: m(batch[0]).sum() * float("nan"), batches, budget=1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
