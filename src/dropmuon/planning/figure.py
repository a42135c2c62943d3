"""The figure of a plan: costs, constants and probabilities by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dropmuon.checks import import_extra
from dropmuon.planning.candidates import positive_constants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dropmuon.planning.planner import Plan

__all__ = ["draw"]

_FORWARD, _BACKWARD, _UPDATE, _RANGE = "#9ecae1", "#4292c6", "#fdae6b", "#888888"


def draw(plan: Plan, path: str | Path | None = None) -> Figure:
    """Draw the three panels, one above the other, over the layers; save them if given a path."""
    module = import_extra("matplotlib.figure", "plan")
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
    parts = (
        ("forward", seconds.forward, _FORWARD),
        ("backward", seconds.backward + seconds.weight, _BACKWARD),
        ("update", seconds.sharp, _UPDATE),
    )
    for label, spent, color in parts:
        axes.bar(x, 1000 * spent, bottom=floor, color=color, label=label)
        floor += 1000 * spent
    axes.set_ylabel("ms per step")
    axes.set_title("Costs", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _constants(axes: Any, plan: Plan) -> None:
    """Draw the constants that the plan uses: of the full set, and of the sets that are drawn."""
    estimate, b = plan.smoothness, len(plan.costs.layers)
    is_smooth, everything = plan.applied_regime == "smooth", tuple(range(b))
    name = "L" if is_smooth else "L1"
    known = positive_constants(estimate, plan.applied_regime)
    ends = (estimate.intervals.smooth if is_smooth else estimate.intervals.l1)[everything]
    full = known.constants(0 if is_smooth else 1, everything)
    spread = np.stack([full - ends[:, 0], ends[:, 1] - full]).clip(min=0)
    spread[~np.isfinite(spread)] = 0.0
    axes.errorbar(
        range(b),
        full,
        yerr=spread,
        fmt="o",
        color="#08519c",
        ecolor=_RANGE,
        capsize=3,
        label=f"{name} when all layers move",
    )
    if plan.gain_expected:
        drawn = plan.sampler.distribution(b)
        tables = [known.constants(0 if is_smooth else 1, s) for s, p in drawn.items() if p > 0]
        label = f"{name} in the sets that are drawn, at most"
        axes.plot(range(b), np.max(tables, axis=0), "^", color="#e6550d", label=label)
    _logarithmic(axes)
    axes.set_ylabel("smoothness constant")
    axes.set_title("Constants", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _logarithmic(axes: Any) -> None:
    """Make the axis logarithmic, with labels even within one decade."""
    ticker = import_extra("matplotlib.ticker", "plan")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.5, high * 1.5)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _probabilities(axes: Any, plan: Plan) -> None:
    b = len(plan.costs.layers)
    reached, moves = plan.sampler.marginals(b)
    axes.bar(range(b), moves, color="#74c476", label="the layer moves")
    axes.step(range(b), reached, where="mid", color="#006d2c", label="backward reaches it")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("probability")
    axes.set_title("Recommended sampler", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
