"""Charts for the web: small SVG that follows the page's colours, readable without scripts.

Every mark carries what a script needs to explain it: lines their points (data-points) and the
scales of their frame, other marks a sentence (data-tip).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from dropmuon.lab.analysis import formatting as wording

__all__ = ["FORMATS", "Frame", "Series", "line_chart", "path", "tag", "ticks"]

Point = tuple[float, float]

FORMATS: dict[str, Callable[[float], str]] = {
    "epoch": lambda value: f"{value:g}",
    "seconds": lambda value: "0" if value == 0 else wording.duration(value).replace(".0 ", " "),
    "operations": lambda value: "0" if value == 0 else wording.operations(value),
    "share": lambda value: f"{value:g}",
    "percent": lambda value: f"{100 * value:.0f} %",
    "times": lambda value: f"{value:g}x",
}


@dataclass(frozen=True)
class Series:
    """One method's line: its classes, its points, and what surrounds them.

    Attributes:
        css: classes that give colour and let a legend hide it.
        thin: lines of single seeds.
        band: lower and upper edge, at the places of `points`.
        end: where the method itself ended; beyond it the line is dotted.
    """

    name: str
    css: str
    points: Sequence[Point]
    thin: Sequence[Sequence[Point]] = ()
    band: tuple[Sequence[float], Sequence[float]] | None = None
    end: float = math.inf


@dataclass(frozen=True)
class Frame:
    """A plotting area: data ranges, and where they lie in the drawing."""

    x: Point
    y: Point
    width: float = 440
    height: float = 290
    left: float = 48
    right: float = 14
    top: float = 12
    bottom: float = 42

    def across(self, value: float) -> float:
        """Place of a value from the left."""
        share = (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return self.left + share * (self.width - self.left - self.right)

    def down(self, value: float) -> float:
        """Place of a value from the top."""
        share = (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def svg(self, label: str, marks: Iterable[Markup], css: str = "", **data: str) -> Markup:
        """The whole drawing around these marks."""
        return tag(
            "svg",
            Markup("").join(marks),
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=label,
            class_=f"chart {css}".strip(),
            **data,
        )

    def axes(self, label: str, x_format: str, y_format: str, x_ticks: bool = True) -> list[Markup]:
        """Horizontal rules with their values, values along the bottom, and a label below."""
        left, right, base = self.left, self.width - self.right, self.height - self.bottom
        found = []
        for value in ticks(*self.y, 5):
            y = f"{self.down(value):.1f}"
            found.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="rule"))
            shown = FORMATS[y_format](value)
            found.append(tag("text", shown, x=left - 8, y=y, dy="0.33em", class_="tick end"))
        for value in ticks(*self.x, 4 if x_format == "operations" else 6) if x_ticks else ():
            x = f"{self.across(value):.1f}"
            shown = FORMATS[x_format](value)
            found.append(tag("text", shown, x=x, y=base + 17, class_="tick middle"))
        middle = (left + right) / 2
        found.append(tag("text", label, x=middle, y=self.height - 6, class_="label middle"))
        return found


def line_chart(
    series: Sequence[Series], label: str, x_label: str, x_format: str, x_end: float | None = None
) -> Markup:
    """Accuracies along some axis."""
    points = [point for each in series for line in (each.points, *each.thin) for point in line]
    if not points:
        return tag("p", "Nothing to draw yet.", class_="none")
    far = max(x for x, _ in points) if x_end is None else x_end
    low = math.floor(10 * min(y for _, y in points)) / 10
    frame = Frame((0.0, far or 1.0), (min(low, 0.9), 1.0))
    marks = frame.axes(x_label, x_format, "percent")
    marks += [_series(frame, each) for each in series]
    scale = {
        "data_x": " ".join(f"{v:.6g}" for v in (*frame.x, frame.left, frame.width - frame.right)),
        "data_y": " ".join(f"{v:.6g}" for v in (*frame.y, frame.down(frame.y[0]), frame.top)),
        "data_format": x_format,
    }
    return frame.svg(label, marks, "lines", tabindex="0", **scale)


def path(frame: Frame, points: Sequence[Point], css: str, **attributes: str) -> Markup:
    """A line through points, with no more of them than a screen can show."""
    thinned = _thinned(points)
    line = " ".join(f"{frame.across(x):.1f},{frame.down(y):.1f}" for x, y in thinned)
    return tag("polyline", points=line, class_=css, **attributes)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About so many round values between two ends."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.10g}") for place in range(first, last + 1)]


def tag(name: str, content: object = "", **attributes: object) -> Markup:
    """An element; everything but markup is escaped, and data_x becomes data-x."""
    pairs = "".join(
        f' {_ATTRIBUTES.get(key, key.replace("_", "-"))}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{pairs}>{escape(content)}</{name}>")


_ATTRIBUTES = {"class_": "class", "viewBox": "viewBox"}


def _series(frame: Frame, series: Series) -> Markup:
    marks = []
    if series.band is not None:
        xs = [x for x, _ in series.points]
        low, high = (list(zip(xs, edge, strict=True)) for edge in series.band)
        corners = [*_thinned(high), *reversed(_thinned(low))]
        places = " ".join(f"{frame.across(x):.1f},{frame.down(y):.1f}" for x, y in corners)
        marks.append(tag("polygon", points=places, class_="band"))
    marks += [path(frame, line, "thin") for line in series.thin]
    own = [point for point in series.points if point[0] <= series.end + 1e-9]
    rest = [*own[-1:], *series.points[len(own) :]]
    values = json.dumps([[float(f"{x:.5g}"), round(y, 4)] for x, y in _thinned(series.points)])
    marks.append(path(frame, own, "main", data_points=values, data_name=series.name))
    if len(rest) > 1:
        marks.append(path(frame, rest, "rest"))
    return tag("g", Markup("").join(marks), class_=f"s {series.css}")


def _thinned(points: Sequence[Point], most: int = 160) -> list[Point]:
    if len(points) <= most:
        return list(points)
    places = [round(i * (len(points) - 1) / (most - 1)) for i in range(most)]
    return [points[place] for place in places]
