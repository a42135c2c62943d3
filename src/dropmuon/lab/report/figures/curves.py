"""Accuracy against epochs, against time, and averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from dropmuon.lab.analysis import formatting as wording
from dropmuon.lab.analysis.metrics import Curve
from dropmuon.lab.analysis.series import Axis, Split, along, mean_line
from dropmuon.lab.analysis.series import accuracy as accuracy_of
from dropmuon.lab.report.figures.palette import Palette
from dropmuon.lab.run import Evaluation

__all__ = ["accuracy", "below", "normalized"]

_AXES: dict[Axis, str] = {
    "epoch": "epochs",
    "seconds": "seconds of training",
    "operations": "floating-point operations",
}


def accuracy(
    by_method: Mapping[str, Mapping[int, list[Evaluation]]], palette: Palette, split: Split
) -> Figure:
    """The paper's pair, and a third panel: against epochs, seconds and operations."""
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
    below(figure, panels[0])
    return figure


def normalized(curves: Sequence[Curve], palette: Palette) -> Figure:
    """Normalised curve averaging: the baseline ends at 1, bands are bootstrap intervals."""
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
    below(figure, panel)
    return figure


def below(figure: Figure, panel: Axes) -> None:
    """A legend under everything."""
    handles, labels = panel.get_legend_handles_labels()
    columns = min(len(labels), max(2, int(figure.get_figwidth() // 2.2)))
    figure.legend(handles, labels, loc="outside lower center", ncols=max(columns, 1))


def _lines(
    panel: Axes,
    method: str,
    of_seed: Mapping[int, list[Evaluation]],
    palette: Palette,
    axis: Axis,
    split: Split,
) -> None:
    """Every seed thin, their mean over it."""
    color = palette.color(method)
    for trial in of_seed.values() if len(of_seed) > 1 else ():
        places = [along(each, axis) for each in trial]
        panel.plot(places, [accuracy_of(e, split) for e in trial], color=color, lw=0.7, alpha=0.35)
    line = mean_line(of_seed, axis, split)
    style = palette.line(method)
    panel.plot(
        [x for x, _ in line], [y for _, y in line], color=color, ls=style, lw=2, label=method
    )
