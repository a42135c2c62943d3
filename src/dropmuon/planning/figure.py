"""The figure of a plan: costs, noise, shares and, with a regime, constants by layer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dropmuon.checks import import_extra
from dropmuon.planning.bounds.candidates import positive_constants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dropmuon.planning.planner import Plan

__all__ = ["draw"]

_FORWARD, _BACKWARD, _UPDATE, _RANGE = "#9ecae1", "#4292c6", "#fdae6b", "#888888"


def draw(plan: Plan, path: str | Path | None = None) -> Figure:
    """Draw panels one above the other, over the layers; save them if given a path."""
    module = import_extra("matplotlib.figure", "plan")
    layers, bounds = plan.costs.layers, plan.bounds
    panels = [_costs]
    panels += [_noise] if plan.noise is not None else []
    panels += [_constants] if bounds is not None else []
    panels.append(_shares if bounds is None else _probabilities)
    size = (max(6.0, 0.55 * len(layers) + 2), 1.0 + 2.5 * len(panels))
    figure: Figure = module.Figure(figsize=size, dpi=120)
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(column, panels, strict=True):
        panel(axes, plan)
    column[-1].set_xticks(range(len(layers)), layers, rotation=45, ha="right")
    figure.suptitle(_title(plan))
    figure.tight_layout()
    if path is not None:
        figure.savefig(path)
    return figure


def _title(plan: Plan) -> str:
    if not plan.gain_expected:
        return re.split("[:.]", str(plan), maxsplit=1)[0]  # the headline
    how = "expected" if plan.bounds is None else "by bounds"
    return f"{plan.best.name}\n{how} {plan.predicted_speedup:.2f}x as fast as full updates"


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


def _noise(axes: Any, plan: Plan) -> None:
    """Draw the range of noise-to-signal ratios that was measured, and those over the run."""
    noise, ratios = plan.noise, plan.gains.ratios
    if noise is None or ratios is None:
        return
    x = range(len(plan.costs.layers))
    axes.fill_between(
        x, noise.ratios.min(axis=0), noise.ratios.max(axis=0), color="#dadaeb", label="measured"
    )
    label = f"over a run of {plan.gains.horizon} steps"
    axes.plot(x, ratios, "o", color="#54278f", label=label)
    axes.axhline(1.0, color=_RANGE, linewidth=0.8)
    _logarithmic(axes)
    axes.set_ylabel("noise / signal")
    axes.set_title(f"Noise, {noise.examples} examples per batch", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _shares(axes: Any, plan: Plan) -> None:
    axes.bar(range(len(plan.costs.layers)), plan.shares, color="#74c476")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of the batch")
    turns = f", {plan.turns} turns" if plan.turns > 1 else ""
    axes.set_title(f"Recommended shares{turns}", loc="left", fontsize=10)


def _constants(axes: Any, plan: Plan) -> None:
    """Draw the constants that bounds use: of the full set, and of the sets that are drawn."""
    bounds = plan.bounds
    if bounds is None:
        return
    estimate, b = bounds.smoothness, len(plan.costs.layers)
    is_smooth, everything = bounds.applied_regime == "smooth", tuple(range(b))
    name = "L" if is_smooth else "L1"
    known = positive_constants(estimate, bounds.applied_regime)
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
