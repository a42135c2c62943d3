"""Charts for the page, in SVG: lines, bars, areas and heat maps, readable without scripts.

Every element carries what a script needs to explain it: lines their points (data-points) and the
scales of their frame, other elements a sentence (data-tip).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from dropmuon.lab.analysis import wording
from dropmuon.lab.analysis.metrics import Speedup
from dropmuon.lab.report.drawing import Frame, Point, explained, short, tag, thinned

__all__ = ["Series", "area_chart", "bar_chart", "heat_map", "layer_chart", "line_chart"]


@dataclass(frozen=True)
class Series:
    """One method's line: its classes, its points, and what surrounds them.

    Attributes:
        css: classes that give its colour and let the legend hide it.
        thin: lines of single seeds.
        band: lower and upper edge, at the places of `points`.
        end: where the method ended; beyond it the line is dotted.
    """

    name: str
    css: str
    points: Sequence[Point]
    thin: Sequence[Sequence[Point]] = ()
    band: tuple[Sequence[float], Sequence[float]] | None = None
    end: float = math.inf


def line_chart(
    series: Sequence[Series], label: str, x_label: str, x_format: str, x_end: float | None = None
) -> Markup:
    """Draw accuracies against epochs or time."""
    points = [point for each in series for line in (each.points, *each.thin) for point in line]
    if not points:
        return tag("p", "Nothing to draw yet.", class_="none")
    far = max(x for x, _ in points) if x_end is None else x_end
    low = math.floor(10 * min(y for _, y in points)) / 10
    frame = Frame((0.0, far or 1.0), (min(low, 0.9), 1.0))
    elements = frame.axes(x_label, x_format, "percent")
    elements += [_series(frame, each) for each in series]
    scale = {
        "data_x": " ".join(f"{v:.6g}" for v in (*frame.x, frame.left, frame.width - frame.right)),
        "data_y": " ".join(f"{v:.6g}" for v in (*frame.y, frame.down(frame.y[0]), frame.top)),
        "data_format": x_format,
    }
    return frame.svg(label, elements, "lines", tabindex="0", **scale)


def bar_chart(
    groups: Mapping[float, Sequence[Speedup]], css: Mapping[str, str], baseline: str, label: str
) -> Markup:
    """Draw time-to-target ratios by target, with intervals; a miss is a cross, never left out."""
    found = [each for group in groups.values() for each in group]
    if not found:
        return tag("p", "Nothing to compare yet.", class_="none")
    tops = [each.high or each.ratio or 0.0 for each in found]
    frame = Frame((0.0, float(len(groups))), (0.0, max(1.25, 1.08 * max(tops))))
    elements = frame.axes(f"{found[0].split} accuracy to reach", "share", "times", x_ticks=False)
    one, base = f"{frame.down(1.0):.1f}", frame.down(0.0)
    for place, (target, group) in enumerate(groups.items()):
        middle = frame.across(place + 0.5)
        name = wording.goal(target)
        elements.append(tag("text", name, x=middle, y=base + 17, class_="tick middle"))
        width = 0.78 * (frame.across(1) - frame.across(0)) / max(len(group), 1)
        for i, each in enumerate(group):
            x = middle + (i - (len(group) - 1) / 2) * width
            elements.append(_bar(frame, x, min(0.86 * width, 34), each, css[each.method], baseline))
    ends = {"x1": frame.left, "x2": frame.width - frame.right}
    elements.append(tag("line", **ends, y1=one, y2=one, class_="one"))
    return frame.svg(label, elements, "bars")


def area_chart(
    layers: Sequence[str],
    progress: Sequence[float],
    shares: Sequence[Sequence[float]],
    colors: Sequence[str],
    label: str,
) -> Markup:
    """Draw stacked probabilities over training, the first layer at the bottom."""
    frame = Frame((0.0, 1.0), (0.0, 1.0), width=300, height=190, left=46, bottom=38)
    elements = frame.axes("progress of training", "share", "percent")
    below = [0.0] * len(progress)
    for layer, name in enumerate(layers):
        above = [low + row[layer] for low, row in zip(below, shares, strict=True)]
        edge = [*zip(progress, above, strict=True)]
        edge += reversed([*zip(progress, below, strict=True)])
        tip = (
            f"{name}: {wording.percent(shares[0][layer])} at the start, "
            f"{wording.percent(shares[-1][layer])} at the end"
        )
        elements.append(explained("polygon", tip, points=frame.points(edge), fill=colors[layer]))
        below = above
    return frame.svg(label, elements, "area")


def layer_chart(
    layers: Sequence[str], lines: Sequence[Sequence[Point]], label: str, *, is_share: bool
) -> Markup:
    """Draw a line per layer against epochs: shares from 0 to 1, or positive values by powers."""
    if not is_share:
        lines = [[(x, math.log10(y)) for x, y in line if y > 0] for line in lines]
    points = [point for line in lines for point in line]
    if not points:
        return tag("p", "Nothing was measured yet.", class_="none")
    low, high = (0.0, 1.0) if is_share else (min(y for _, y in points), max(y for _, y in points))
    if not is_share:
        low, high = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    ends = (0.0, max(x for x, _ in points) or 1.0)
    frame = Frame(ends, (low, high), width=300, height=190, left=46, bottom=38)
    elements = frame.axes("epochs", "epoch", "percent" if is_share else "power")
    for layer, line in enumerate(lines):
        shown = [wording.share(y) if is_share else f"{10**y:.2g}" for _, y in line]
        name = layers[layer] if layer < len(layers) else str(layer)
        tip = f"{name}: {shown[0]} at first, {shown[-1]} at the end" if line else name
        content = {"points": frame.points(thinned(line)), "class_": "layer"}
        place = layer / max(len(lines) - 1, 1)
        elements.append(explained("polyline", tip, **content, style=f"--t:{100 * place:.0f}%"))
    return frame.svg(label, elements, "area")


def heat_map(
    layers: Sequence[str], edges: Sequence[float], shares: Sequence[Sequence[float]], label: str
) -> Markup:
    """Draw how often layers moved: a row per layer, a column per evaluation."""
    edges, shares = _merged(edges, shares)
    height = 52 + 24 * len(shares) if len(shares) <= 8 else 52 + 12 * len(shares)
    names = [*layers, *(str(i) for i in range(len(layers), len(shares)))]
    left = 16 + 6.4 * min(max((len(name) for name in names), default=0), 16)
    frame = Frame(
        (edges[0], edges[-1]), (0.0, float(len(shares))), 300, height, max(left, 46), 14, 6, 38
    )
    elements = [*frame.axes("epochs", "epoch", "share")[-1:]]
    size = abs(frame.down(1) - frame.down(0))
    for row, values in enumerate(shares):
        y = frame.down(len(shares) - row)
        text = {"x": frame.left - 8, "y": f"{y + size / 2:.1f}", "dy": "0.33em"}
        elements.append(tag("text", short(names[row]), **text, class_="tick end"))
        for column, value in enumerate(values):
            x, end = frame.across(edges[column]), frame.across(edges[column + 1])
            tip = (
                f"{names[row]}, epoch {edges[column]:.3g} to {edges[column + 1]:.3g}: moved in "
                f"{wording.share(value)} of steps"
            )
            box: dict[str, Any] = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
            box |= {"width": f"{max(end - x - 0.6, 0.6):.1f}", "height": f"{size - 1:.1f}"}
            elements.append(explained("rect", tip, **box, class_="cell", style=f"--v:{value:.2f}"))
    for value in (edges[0], edges[-1]):
        place = {"x": f"{frame.across(value):.1f}", "y": f"{frame.height - 22:.1f}"}
        elements.append(tag("text", f"{value:.3g}", **place, class_="tick middle"))
    return frame.svg(label, elements, "heat")


def _series(frame: Frame, series: Series) -> Markup:
    elements = []
    if series.band is not None:
        xs = [x for x, _ in series.points]
        low, high = (list(zip(xs, edge, strict=True)) for edge in series.band)
        corners = [*thinned(high), *reversed(thinned(low))]
        elements.append(tag("polygon", points=frame.points(corners), class_="band"))
    elements += [_line(frame, line, "thin") for line in series.thin]
    own = [point for point in series.points if point[0] <= series.end + 1e-9]
    rest = [*own[-1:], *series.points[len(own) :]]
    values = json.dumps([[float(f"{x:.5g}"), round(y, 4)] for x, y in thinned(series.points)])
    elements.append(_line(frame, own, "main", data_points=values, data_name=series.name))
    if len(rest) > 1:
        elements.append(_line(frame, rest, "rest"))
    return tag("g", Markup("").join(elements), class_=f"s {series.css}")


def _line(frame: Frame, points: Sequence[Point], css: str, **attributes: str) -> Markup:
    """Draw a line through points, with no more of them than a screen can show."""
    return tag("polyline", points=frame.points(thinned(points)), class_=css, **attributes)


def _bar(frame: Frame, x: float, width: float, found: Speedup, css: str, baseline: str) -> Markup:
    base, elements = frame.down(0.0), []
    if found.ratio is not None:
        top = frame.down(found.ratio)
        box = {"x": f"{x - width / 2:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}"}
        elements.append(tag("rect", **box, height=f"{base - top:.1f}", rx="2", class_="bar"))
        if found.low is not None and found.high is not None:
            ends = {"y1": f"{frame.down(found.low):.1f}", "y2": f"{frame.down(found.high):.1f}"}
            elements.append(tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", **ends, class_="interval"))
    missed = found.seeds - found.reached
    if found.ratio is None:
        note = f"missed {missed}/{found.seeds}" if missed else "alone"
        turned = f"translate({x:.1f} {base - 16:.1f}) rotate(-90)"
        elements.append(tag("text", note, transform=turned, dy="0.35em", class_="missed"))
    elif missed:
        place = {"x": f"{x:.1f}", "y": f"{frame.down(found.high or found.ratio) - 4:.1f}"}
        note = f"{found.reached}/{found.seeds}"
        elements.append(tag("text", note, **place, class_="missed middle"))
    if not found.reached:
        arm = min(4.0, width / 2)
        cross = f"M{x - arm:.1f} {base - 10:.1f}l{2 * arm:.1f} 8m0 -8l{-2 * arm:.1f} 8"
        elements.append(tag("path", d=cross, class_="cross"))
    tip = wording.sentence(found, baseline)
    return explained("g", tip, Markup("").join(elements), class_=f"s {css}")


def _merged(
    edges: Sequence[float], shares: Sequence[Sequence[float]], most: int = 40
) -> tuple[Sequence[float], Sequence[Sequence[float]]]:
    """Average neighbouring columns until there are few enough to tell apart."""
    count = len(edges) - 1
    if count <= most:
        return edges, shares
    cuts = [round(i * count / most) for i in range(most + 1)]
    spans = list(pairwise(cuts))
    rows = [[sum(row[a:b]) / (b - a) for a, b in spans] for row in shares]
    return [edges[cut] for cut in cuts], rows
