"""What happens to the layers: which are drawn, and which moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from dropmuon.lab.analysis.series import activity
from dropmuon.lab.report.figures.curves import below
from dropmuon.lab.report.figures.palette import DEPTHS, INK
from dropmuon.lab.run import Evaluation

__all__ = ["layer_activity", "sampling"]

_ACTIVITY = LinearSegmentedColormap.from_list("activity", ["#f4f6f9", "#58a3cf", "#08306b"])


def sampling(methods: Mapping[str, Mapping[str, Any]]) -> Figure:
    """P(cutoff = layer) over training, stacked, for every method that draws a cutoff."""
    rows, columns = _grid(len(methods))
    figure = Figure(figsize=(4.3 * columns, 2.9 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    depths = LinearSegmentedColormap.from_list("depths", list(DEPTHS))
    for panel, (method, found) in zip(panels, methods.items(), strict=False):
        layers = found["layers"]
        colors = [depths(i / max(len(layers) - 1, 1)) for i in range(len(layers))]
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
    below(figure, panels[0])
    return figure


def layer_activity(
    by_method: Mapping[str, Mapping[int, list[Evaluation]]], named: Mapping[str, Sequence[str]]
) -> Figure | None:
    """The share of steps in which each layer moved, from one evaluation to the next."""
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
    figure.colorbar(mesh, ax=list(panels), label="share of steps that moved it", shrink=0.8)
    return figure


def _grid(count: int) -> tuple[int, int]:
    columns = min(count, 3)
    return -(-count // columns), columns
