"""The figure of a plan: its panels, labels and constants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dropmuon.planning import Plan
from dropmuon.theory import StepCosts
from tests.planning.synthetic_plans import costs_of, layer_names, noise_of, plan_of


def test_the_figure_of_bounds_has_constants_and_is_written(tmp_path: Path) -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    figure = found.plot(tmp_path / "plan.png")
    assert titles(figure) == ["Costs", "Constants", "Recommended sampler"]
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_measurements_has_noise_and_shares() -> None:
    found = Plan(costs_of(layer_names(3)), noise_of([0.002, 0.004, 0.001], growth=1.0))
    figure = found.plot()
    assert titles(figure) == ["Costs", "Noise, 1024 examples per batch", "Recommended shares"]
    bars: list[Any] = list(figure.axes[2].patches)
    heights = [bar.get_height() for bar in bars]
    assert heights == list(found.shares)
    assert heights[0] < heights[-1] == 1.0
    (over_the_run, _) = figure.axes[1].lines
    assert np.asarray(over_the_run.get_ydata()).tolist() == found.gains.ratios.tolist()
    assert found.best.name in figure.get_suptitle()
    slow_updates = StepCosts(0.001, [0.002] * 3, [0.004] * 3, [0.1] * 3)
    without = Plan(replace(costs_of(layer_names(3)), seconds=slow_updates))
    assert titles(without.plot()) == ["Costs", "Recommended shares, 4 turns"]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


@pytest.mark.parametrize("largest", [3.0, 3.0e5])
def test_the_axis_of_constants_has_labels(largest: float) -> None:
    found = plan_of(full=[2.0, largest, 4.0], alone=[1.0, largest / 2, 2.0])
    figure = found.plot()
    figure.canvas.draw()
    axes = figure.axes[1]
    low, high = axes.get_ylim()
    shown = [t.get_text() for t in axes.get_yticklabels() if low <= t.get_position()[1] <= high]
    assert len([label for label in shown if label]) >= 2


def test_the_figure_shows_the_constants_of_the_sets_that_are_drawn() -> None:
    found = plan_of(full=[4.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    assert found.best.name == "blocks of 1, optimal"
    drawn = found.plot().axes[1].lines[-1]
    np.testing.assert_allclose(np.asarray(drawn.get_ydata()), [0.5, 1.0, 2.0])
