"""The whole way from a model to a recommendation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon, samplers
from dropmuon.planning import Option, Plan, plan
from dropmuon.planning.candidates import candidates
from dropmuon.planning.planner import recommend
from dropmuon.planning.predictions import Prediction
from dropmuon.theory import against_full, optimal_progressive
from tests.planning.synthetic_plans import plan_of, small_problem


def test_a_plan_is_made_read_saved_and_loaded(tmp_path: Path) -> None:
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
    found = plan_of(full=[4.0, 2.0, 1.0], alone=[4.0, 2.0, 1.0])
    assert found.full_update_is_optimal
    progressive = next(o for o in found.options if o.candidate.family == "progressive, optimal")
    assert progressive.fresh.speedup == pytest.approx(1.0)


def test_no_gain_is_said_and_full_updates_are_recommended() -> None:
    found = plan_of(full=[4.0], alone=[4.0])
    assert not found.gain_expected
    assert found.sampler == samplers.Full()
    assert found.predicted_speedup == 1.0
    assert "No gain expected" in str(found)


def test_the_recommendation_is_the_option_with_the_least_cost_of_theory() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0, 9.0], alone=[0.5, 1.0, 2.0, 3.0])
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
    for option in plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0]).options:
        for found in (option.fresh, option.reused):
            assert found.low <= found.speedup <= found.high


@pytest.mark.parametrize("points", [1, 2])
def test_a_gain_needs_three_points(points: int) -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0], points=points)
    assert found.best.fresh.speedup > 1.5
    assert (found.best.fresh.low, found.best.fresh.high) == (0.0, float("inf"))
    assert not found.gain_expected
    assert found.sampler == samplers.Full()
    assert f"smoothness was estimated at {points} of the 3 points" in str(found)
    assert "(unknown)" in str(found)
    assert found.plot().axes
    assert plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0], points=3).gain_expected


def test_an_option_that_is_sure_to_gain_comes_before_one_that_may_gain_more() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    sure = found.best
    wide = Option(sure.candidate, Prediction(99.0, 0.1, 9e4), sure.reused)
    both = replace(found, options=(found.options[0], wide, sure))
    assert both.best is sure
    assert both.gain_expected
    alone = replace(found, options=(found.options[0], wide))
    assert alone.best is wide
    assert not alone.gain_expected
    assert "99.00x (unknown)" in str(alone)


def test_an_unknown_regime_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="regime"):
        plan(*small_problem(), regime="1/eps2", budget=1.0)  # type: ignore[arg-type]


def test_a_whole_round_of_timing_is_needed_and_its_absence_told() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    times = np.array([0.01, np.nan, 0.005])
    costs = replace(found.costs, rounds=0, seconds_by_cutoff=times)
    short = recommend(costs, found.smoothness, 2)
    assert found.gain_expected
    assert not short.gain_expected
    assert "there was time to measure 2 of 3 cutoffs" in str(short)
    (chosen,) = (line for line in str(short).splitlines() if "<- recommended" in line)
    assert chosen.startswith("full updates")


def test_costs_that_fit_badly_promise_no_gain() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    bad = recommend(replace(found.costs, fit_error=3.0), found.smoothness, 2)
    assert 1.5 < found.best.fresh.low < 4.0
    assert bad.best.fresh.speedup == found.best.fresh.speedup
    assert bad.best.fresh.low == pytest.approx(found.best.fresh.low / 4.0)
    assert "Times are known only to within 300%" in str(bad)
    assert "Times are known" not in str(found)
    assert not bad.gain_expected


def test_a_prediction_that_a_floor_decides_is_marked() -> None:
    found = plan_of(full=[2.5, 2.5], alone=[0.0, 0.0])
    assert 20 < found.predicted_speedup < 100
    assert not found.best.fresh.bounded
    assert "x (not bounded by the measurements) as fast as full updates" in str(found)
    assert "count as 1% of the largest" in str(found)
    unused = plan_of(full=[1.0, 3.0, 9.0, 0.0], alone=[0.5, 1.0, 2.0, 0.0])
    progressive = next(o for o in unused.options if o.candidate.family == "progressive, optimal")
    assert progressive.fresh.bounded
    assert "not bounded" not in str(plan_of(full=[1.0, 3.0], alone=[0.5, 1.0]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", 0),
        ("budget", float("nan")),
        ("points", 0),
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
