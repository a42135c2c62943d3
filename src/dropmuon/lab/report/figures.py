"""The paper's figures of a run, as PNG for screens and SVG for print."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from dropmuon.lab.analysis import Results, wording
from dropmuon.lab.analysis.metrics import Speedup
from dropmuon.lab.analysis.series import (
    SPLITS,
    UNITS,
    Axis,
    Curve,
    Split,
    Unit,
    accuracy,
    activity,
    along,
    mean_line,
    trials,
)
from dropmuon.lab.report.drawing import INK, Palette, depths
from dropmuon.lab.run import Evaluation, RunDirectory
from dropmuon.output import write_bytes

__all__ = ["write_figures"]

_AXES: dict[Axis, str] = {
    "epoch": "epochs",
    "seconds": "seconds of training",
    "operations": "floating-point operations",
}

_ACTIVITY = LinearSegmentedColormap.from_list("activity", ["#f4f6f9", "#58a3cf", "#08306b"])

_FILE_DATES = {"png": {}, "svg": {"Date": None}}
"""Without a date, the same run gives the same bytes."""


_STYLE: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "savefig.facecolor": "white",
    "font.family": "sans-serif",
    "text.parse_math": False,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.edgecolor": "#c4c9d2",
    "axes.labelcolor": "#4a5160",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7e9ee",
    "grid.linewidth": 0.8,
    "xtick.color": "#4a5160",
    "ytick.color": "#4a5160",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "svg.hashsalt": "dropmuon",
}


def write_figures(run: RunDirectory, results: Results) -> list[Path]:
    """Draw every figure that the run has data for; return the files written."""
    folder = run.path / "figures"
    folder.mkdir(exist_ok=True)
    written = []
    with mpl.rc_context(_STYLE):
        for name, figure in _figures(run, results):
            for kind, metadata in _FILE_DATES.items():
                file = io.BytesIO()
                figure.savefig(file, format=kind, metadata=metadata)
                figure.set_layout_engine("none")  # the first file has settled the layout
                written.append(folder / f"{name}.{kind}")
                write_bytes(written[-1], file.getvalue())
    return written


def _figures(run: RunDirectory, results: Results) -> Iterator[tuple[str, Figure]]:
    by_method = trials(run.evaluations())
    palette = Palette(results.methods, results.baseline)
    for split in SPLITS:
        if by_method:
            yield f"accuracy-{split}", _accuracy(by_method, palette, split)
        for unit in UNITS:
            curves = [e for e in results.curves if (e.split, e.unit) == (split, unit)]
            if curves:
                yield f"normalized-{split}-{unit}", _normalized(curves, palette)
            if results.finals and results.targets:
                figure = _speedups(results, palette, split, unit)
                yield f"time-to-target-{split}-{unit}", figure
    drawn = {name: found for name, found in run.methods.items() if found.get("cutoff")}
    if drawn:
        yield "sampling", _sampling(drawn)
    named = {name: found.get("layers", []) for name, found in run.methods.items()}
    moved = _layer_activity(by_method, named)
    if moved is not None:
        yield "layer-activity", moved


def _accuracy(
    by_method: Mapping[str, Mapping[int, list[Evaluation]]], palette: Palette, split: Split
) -> Figure:
    """Draw accuracy against epochs, seconds and operations: the paper's pair and a third panel."""
    figure = Figure(figsize=(13, 4.3), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, (axis, label) in zip(panels, _AXES.items(), strict=True):
        for method, of_seed in by_method.items():
            _lines(panel, method, of_seed, palette, axis, split)
        panel.set_xlabel(label)
        panel.set_xlim(left=0)
        if axis == "operations":
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: wording.operations(x)))
            panel.locator_params(axis="x", nbins=4)
    panels[0].set_title(f"{split.capitalize()} accuracy")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    _legend(figure, panels[0])
    return figure


def _normalized(curves: Sequence[Curve], palette: Palette) -> Figure:
    """Draw normalised average curves: the baseline ends at 1, bands are bootstrap intervals."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    panel = figure.subplots()
    first = curves[0]
    for curve in curves:
        color = palette.color(curve.method)
        panel.fill_between(curve.time, curve.low, curve.high, color=color, alpha=0.15, lw=0)
        own = [place for place, time in enumerate(curve.time) if time <= curve.end + 1e-9]
        cut = own[-1] + 1
        panel.plot(
            curve.time[:cut],
            curve.mean[:cut],
            color=color,
            ls=palette.line(curve.method),
            lw=2,
            label=curve.method,
        )
        panel.plot(curve.time[cut - 1 :], curve.mean[cut - 1 :], color=color, ls=":", lw=1.2)
    panel.set_title(f"{first.split.capitalize()} accuracy, average over seeds")
    panel.set_xlabel(f"{first.unit}, where {palette.baseline} ends at 1 (dotted: ended earlier)")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.set_xlim(0, 1)
    _legend(figure, panel)
    return figure


def _speedups(results: Results, palette: Palette, split: Split, unit: Unit) -> Figure:
    """Draw the baseline's time over each method's, with intervals; above 1 the method is faster.

    Under a ratio, 2/3 says that two of three seeds reached the target.
    """
    others = [final.method for final in results.finals if final.method != results.baseline]
    figure = Figure(figsize=(max(7.2, 1.7 * len(results.targets)), 4.6), layout="constrained")
    panel = figure.subplots()
    width = 0.8 / max(len(others), 1)
    for place, method in enumerate(others):
        panel.scatter([], [], marker="s", s=60, color=palette.color(method), label=method)
        for group, target in enumerate(results.targets):
            found = results.speedup(method, target, split, unit)
            if found is not None:
                x = group + (place - (len(others) - 1) / 2) * width
                _bar(panel, x, 0.88 * width, found, palette.color(method))
    panel.axhline(1.0, color=INK, lw=1.2)
    panel.set_xticks(range(len(results.targets)), [wording.goal(t) for t in results.targets])
    panel.set_xlabel(f"{split} accuracy to reach")
    panel.set_ylabel(f"{unit} of {results.baseline} / {unit} of method")
    panel.set_title(f"Speed-up to target: above the line is faster than {results.baseline}")
    panel.grid(visible=False, axis="x")
    panel.set_ylim(0, max(1.1, 1.06 * panel.get_ylim()[1]))
    if others:
        _legend(figure, panel)
    return figure


def _sampling(methods: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw P(cutoff = layer) over training, stacked, for every method that draws a cutoff."""
    rows, columns = _grid(len(methods))
    figure = Figure(figsize=(4.3 * columns, 2.9 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for panel, (method, found) in zip(panels, methods.items(), strict=False):
        layers = found["layers"]
        colors = depths(len(layers))
        shares = np.asarray(found["cutoff"], dtype=float).T
        panel.stackplot(found["progress"], shares, labels=layers, colors=colors, lw=0)
        panel.set_title(method)
        panel.set_xlabel("progress of training")
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1)
        panel.grid(visible=False)
    panels[0].set_ylabel("P(cutoff = layer)")
    for panel in panels[len(methods) :]:
        panel.set_visible(False)
    _legend(figure, panels[0])
    return figure


def _layer_activity(
    by_method: Mapping[str, Mapping[int, list[Evaluation]]], named: Mapping[str, Sequence[str]]
) -> Figure | None:
    """Draw the share of steps in which each layer moved, from one evaluation to the next."""
    found = {method: activity(of_seed) for method, of_seed in by_method.items()}
    found = {method: (edges, shares) for method, (edges, shares) in found.items() if shares}
    if not found:
        return None
    rows, columns = _grid(len(found))
    height = max(1.6, 0.32 * max(len(shares) for _, shares in found.values()) + 0.9)
    figure = Figure(figsize=(4.6 * columns, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (method, (edges, shares)) in zip(panels, found.items(), strict=False):
        sides = np.arange(len(shares) + 1) - 0.5
        mesh = panel.pcolormesh(edges, sides, shares, cmap=_ACTIVITY, vmin=0, vmax=1, lw=0)
        mesh.set_rasterized(True)
        names = list(named.get(method, [])) or [str(i) for i in range(len(shares))]
        panel.set_yticks(range(len(shares)), names[: len(shares)], color=INK, fontsize=8)
        panel.invert_yaxis()
        panel.set_title(method)
        panel.set_xlabel("epochs")
        panel.grid(visible=False)
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    figure.colorbar(mesh, ax=list(panels), label="share of steps in which it moved", shrink=0.8)
    return figure


def _lines(
    panel: Axes,
    method: str,
    of_seed: Mapping[int, list[Evaluation]],
    palette: Palette,
    axis: Axis,
    split: Split,
) -> None:
    """Draw every seed as a thin line, and their mean over them."""
    color = palette.color(method)
    for trial in of_seed.values() if len(of_seed) > 1 else ():
        places = [along(each, axis) for each in trial]
        panel.plot(places, [accuracy(e, split) for e in trial], color=color, lw=0.7, alpha=0.35)
    line = mean_line(of_seed, axis, split)
    style = palette.line(method)
    panel.plot(
        [x for x, _ in line], [y for _, y in line], color=color, ls=style, lw=2, label=method
    )


def _bar(panel: Axes, x: float, width: float, found: Speedup, color: str) -> None:
    if found.ratio is None:
        note = wording.missed(found) or wording.cell(found, baseline=False)
        if not found.reached:
            panel.plot([x], [0.04], marker="x", color=color, ms=6, mew=1.8)
        panel.text(x, 0.1, note, ha="center", va="bottom", rotation=90, fontsize=8, color=color)
        return
    panel.bar(x, found.ratio, width, color=color)
    top = found.ratio
    if found.low is not None and found.high is not None:
        panel.plot([x, x], [found.low, found.high], color=INK, lw=1.2)
        top = found.high
    lines = [f"{found.ratio:.2f}"] if width > 0.15 else []
    if found.reached < found.seeds:
        lines.append(f"{found.reached}/{found.seeds}")
    panel.text(x, top + 0.015, "\n".join(lines), ha="center", va="bottom", fontsize=8)


def _legend(figure: Figure, panel: Axes) -> None:
    """Add a legend under all panels."""
    handles, labels = panel.get_legend_handles_labels()
    columns = min(len(labels), max(2, int(figure.get_figwidth() // 2.2)))
    figure.legend(handles, labels, loc="outside lower center", ncols=max(columns, 1))


def _grid(count: int) -> tuple[int, int]:
    columns = min(count, 3)
    return -(-count // columns), columns
