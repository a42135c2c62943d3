"""A plan as a figure: costs, constants and probabilities by layer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dropmuon.planning.plan import Plan

__all__ = ["draw"]

_FORWARD, _BACKWARD, _UPDATE, _RANGE = "#9ecae1", "#4292c6", "#fdae6b", "#888888"


def draw(plan: Plan, path: str | Path | None = None) -> Figure:
    """Draw the three panels, one above the other, over the layers."""
    try:
        module = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; plots need it: pip install 'dropmuon[plan]'") from error
    layers = plan.costs.layers
    figure: Figure = module.Figure(figsize=(max(6.0, 0.55 * len(layers) + 2), 8.5), dpi=120)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    _costs(top, plan)
    _constants(middle, plan)
    _probabilities(bottom, plan)
    bottom.set_xticks(range(len(layers)), layers, rotation=45, ha="right")
    figure.suptitle(_title(plan))
    figure.tight_layout()
    if path is not None:
        figure.savefig(path)
    return figure


def _title(plan: Plan) -> str:
    if not plan.gain_expected:
        return "No gain expected over full updates"
    best = plan.best
    return f"{best.candidate.family}: predicted {best.fresh.speedup:.2f}x as fast as full updates"


def _costs(axes: Any, plan: Plan) -> None:
    seconds, x = plan.costs.seconds, np.arange(len(plan.costs.layers))
    floor = np.zeros(len(x))
    parts = (("forward", _FORWARD), ("backward", _BACKWARD), ("sharp", _UPDATE))
    for name, color in parts:
        heights = 1000 * np.asarray(getattr(seconds, name))
        label = "update" if name == "sharp" else name
        axes.bar(x, heights, bottom=floor, color=color, label=label)
        floor += heights
    axes.set_ylabel("ms per step")
    axes.set_title("Costs", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _constants(axes: Any, plan: Plan) -> None:
    b = len(plan.costs.layers)
    everything = tuple(range(b))
    ends = plan.smoothness.intervals.smooth[everything]
    full = plan.smoothness.smooth.constants(0, everything)
    spread = np.abs(np.stack([full - ends[:, 0], ends[:, 1] - full])).clip(min=0)
    axes.errorbar(
        range(b),
        full,
        yerr=spread,
        fmt="o",
        color="#08519c",
        ecolor=_RANGE,
        capsize=3,
        label="when all layers move",
    )
    own = [plan.smoothness.smooth.constants(0, tuple(range(i, b)))[i] for i in range(b)]
    axes.plot(range(b), own, "^", color="#e6550d", label="when it is the cutoff")
    axes.set_yscale("symlog", linthresh=max(1e-12, float(np.max(full)) * 1e-4))
    axes.set_ylabel("smoothness constant")
    axes.set_title("Constants", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _probabilities(axes: Any, plan: Plan) -> None:
    b = len(plan.costs.layers)
    reached, moves = plan.sampler.marginals(b)
    axes.bar(range(b), moves, color="#74c476", label="the layer moves")
    axes.step(range(b), reached, where="mid", color="#006d2c", label="backward reaches it")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("probability")
    axes.set_title("Recommended sampler", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
