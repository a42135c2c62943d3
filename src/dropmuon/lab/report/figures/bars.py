"""Time-to-target bars, misses marked."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dropmuon.lab.analysis import formatting as wording
from dropmuon.lab.analysis.metrics import Speedup
from dropmuon.lab.analysis.results import Results
from dropmuon.lab.analysis.series import Split, Unit
from dropmuon.lab.report.figures.curves import below
from dropmuon.lab.report.figures.palette import INK, Palette

__all__ = ["time_to_target"]


def time_to_target(results: Results, palette: Palette, split: Split, unit: Unit) -> Figure:
    """The baseline's time over each method's, with intervals; above 1 the method is sooner.

    Under a ratio, 2/3 says that two of three seeds got there.
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
    panel.set_title(f"Speed-up to target: above the line is sooner than {results.baseline}")
    panel.grid(visible=False, axis="x")
    panel.set_ylim(0, max(1.1, 1.06 * panel.get_ylim()[1]))
    if others:
        below(figure, panel)
    return figure


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
