"""The figure of a plan: its panels, labels and constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.planning.synthetic_plans import plan_of


def test_the_figure_has_three_panels_and_is_written(tmp_path: Path) -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    figure = found.plot(tmp_path / "plan.png")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Costs",
        "Constants",
        "Recommended sampler",
    ]
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


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
    assert found.best.candidate.family == "blocks of 1, optimal"
    drawn = found.plot().axes[1].lines[-1]
    np.testing.assert_allclose(np.asarray(drawn.get_ydata()), [0.5, 1.0, 2.0])
