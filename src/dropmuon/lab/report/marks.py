"""Charts of bars, areas and cells for the web."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from dropmuon.lab.analysis import formatting as wording
from dropmuon.lab.analysis.metrics import Speedup
from dropmuon.lab.report.charts import Frame, tag

__all__ = ["area_chart", "bar_chart", "heat_map"]


def bar_chart(
    groups: Mapping[float, Sequence[Speedup]], css: Mapping[str, str], baseline: str, label: str
) -> Markup:
    """Time-to-target ratios by target, with intervals; misses are crossed, never left out."""
    found = [each for group in groups.values() for each in group]
    if not found:
        return tag("p", "Nothing to compare yet.", class_="none")
    tops = [each.high or each.ratio or 0.0 for each in found]
    frame = Frame((0.0, float(len(groups))), (0.0, max(1.25, 1.08 * max(tops))))
    marks = frame.axes(f"{found[0].split} accuracy to reach", "share", "times", x_ticks=False)
    one, base = f"{frame.down(1.0):.1f}", frame.down(0.0)
    for place, (target, group) in enumerate(groups.items()):
        middle = frame.across(place + 0.5)
        name = wording.goal(target)
        marks.append(tag("text", name, x=middle, y=base + 17, class_="tick middle"))
        width = 0.78 * (frame.across(1) - frame.across(0)) / max(len(group), 1)
        for i, each in enumerate(group):
            x = middle + (i - (len(group) - 1) / 2) * width
            marks.append(_bar(frame, x, min(0.86 * width, 34), each, css[each.method], baseline))
    ends = {"x1": frame.left, "x2": frame.width - frame.right}
    marks.append(tag("line", **ends, y1=one, y2=one, class_="one"))
    return frame.svg(label, marks, "bars")


def area_chart(
    layers: Sequence[str],
    progress: Sequence[float],
    shares: Sequence[Sequence[float]],
    colors: Sequence[str],
    label: str,
) -> Markup:
    """Stacked probabilities over training, the first layer at the bottom."""
    frame = Frame((0.0, 1.0), (0.0, 1.0), width=300, height=190, left=46, bottom=38)
    marks = frame.axes("progress of training", "share", "percent")
    below = [0.0] * len(progress)
    for layer, name in enumerate(layers):
        above = [low + row[layer] for low, row in zip(below, shares, strict=True)]
        edge = [*zip(progress, above, strict=True)]
        edge += reversed([*zip(progress, below, strict=True)])
        places = " ".join(f"{frame.across(x):.1f},{frame.down(y):.1f}" for x, y in edge)
        tip = (
            f"{name}: {wording.percent(shares[0][layer])} at the start, "
            f"{wording.percent(shares[-1][layer])} at the end"
        )
        marks.append(_explained("polygon", tip, points=places, fill=colors[layer]))
        below = above
    return frame.svg(label, marks, "area")


def heat_map(
    layers: Sequence[str], edges: Sequence[float], shares: Sequence[Sequence[float]], label: str
) -> Markup:
    """How often layers moved: a row per layer, a column per evaluation."""
    edges, shares = _merged(edges, shares)
    height = 52 + 24 * len(shares) if len(shares) <= 8 else 52 + 12 * len(shares)
    names = [*layers, *(str(i) for i in range(len(layers), len(shares)))]
    left = 16 + 6.4 * min(max((len(name) for name in names), default=0), 16)
    frame = Frame(
        (edges[0], edges[-1]), (0.0, float(len(shares))), 300, height, max(left, 46), 14, 6, 38
    )
    marks = [*frame.axes("epochs", "epoch", "share")[-1:]]
    size = abs(frame.down(1) - frame.down(0))
    for row, values in enumerate(shares):
        y = frame.down(len(shares) - row)
        text = {"x": frame.left - 8, "y": f"{y + size / 2:.1f}", "dy": "0.33em"}
        marks.append(tag("text", _short(names[row]), **text, class_="tick end"))
        for column, value in enumerate(values):
            x, end = frame.across(edges[column]), frame.across(edges[column + 1])
            tip = (
                f"{names[row]}, epoch {edges[column]:.3g} to {edges[column + 1]:.3g}: moved in "
                f"{wording.share(value)} of steps"
            )
            box: dict[str, Any] = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
            box |= {"width": f"{max(end - x - 0.6, 0.6):.1f}", "height": f"{size - 1:.1f}"}
            marks.append(_explained("rect", tip, **box, class_="cell", style=f"--v:{value:.2f}"))
    for value in (edges[0], edges[-1]):
        place = {"x": f"{frame.across(value):.1f}", "y": f"{frame.height - 22:.1f}"}
        marks.append(tag("text", f"{value:.3g}", **place, class_="tick middle"))
    return frame.svg(label, marks, "heat")


def _bar(frame: Frame, x: float, width: float, found: Speedup, css: str, baseline: str) -> Markup:
    base, marks = frame.down(0.0), []
    if found.ratio is not None:
        top = frame.down(found.ratio)
        box = {"x": f"{x - width / 2:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}"}
        marks.append(tag("rect", **box, height=f"{base - top:.1f}", rx="2", class_="bar"))
        if found.low is not None and found.high is not None:
            ends = {"y1": f"{frame.down(found.low):.1f}", "y2": f"{frame.down(found.high):.1f}"}
            marks.append(tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", **ends, class_="interval"))
    missed = found.seeds - found.reached
    if found.ratio is None:
        note = f"missed {missed}/{found.seeds}" if missed else "alone"
        turned = f"translate({x:.1f} {base - 16:.1f}) rotate(-90)"
        marks.append(tag("text", note, transform=turned, dy="0.35em", class_="missed"))
    elif missed:
        place = {"x": f"{x:.1f}", "y": f"{frame.down(found.high or found.ratio) - 4:.1f}"}
        note = f"{found.reached}/{found.seeds}"
        marks.append(tag("text", note, **place, class_="missed middle"))
    if not found.reached:
        arm = min(4.0, width / 2)
        cross = f"M{x - arm:.1f} {base - 10:.1f}l{2 * arm:.1f} 8m0 -8l{-2 * arm:.1f} 8"
        marks.append(tag("path", d=cross, class_="cross"))
    tip = wording.sentence(found, baseline)
    return _explained("g", tip, Markup("").join(marks), class_=f"s {css}")


def _explained(name: str, tip: str, content: object = "", **attributes: object) -> Markup:
    """A mark with its sentence, for pointers and for readers of the page's structure."""
    inside = tag("title", tip) + Markup(str(content))
    return tag(name, inside, data_tip=tip, **attributes)


def _merged(
    edges: Sequence[float], shares: Sequence[Sequence[float]], most: int = 40
) -> tuple[Sequence[float], Sequence[Sequence[float]]]:
    """No more columns than the eye can tell apart."""
    count = len(edges) - 1
    if count <= most:
        return edges, shares
    cuts = [round(i * count / most) for i in range(most + 1)]
    spans = list(pairwise(cuts))
    rows = [[sum(row[a:b]) / (b - a) for a, b in spans] for row in shares]
    return [edges[cut] for cut in cuts], rows


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:7] + "…" + name[-8:]
