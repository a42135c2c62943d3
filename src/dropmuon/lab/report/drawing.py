"""What all charts are made of: colours, and in SVG a frame with axes, elements and ticks.

Each method has one colour and one dash pattern, which colour-blind readers can tell apart too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from dropmuon.lab.analysis import wording

__all__ = [
    "COLORS",
    "FORMATS",
    "INK",
    "Frame",
    "Palette",
    "Point",
    "depths",
    "explained",
    "short",
    "tag",
    "thinned",
    "ticks",
]

PAPER_COLORS = (
    "#4a5160",  # the baseline
    "#0072b2",
    "#d55e00",
    "#008f68",
    "#aa3377",
    "#a87900",
    "#2f8fc4",
    "#882255",
    "#6a51c4",
)
"""On white, at a contrast of 3 or more; after Okabe and Ito, and Tol."""

SCREEN_COLORS = (
    "#aab2c0",
    "#4cb4f0",
    "#ff9248",
    "#2fc79b",
    "#ea8cc0",
    "#e3b53c",
    "#7fd0f5",
    "#d98aae",
    "#a99af2",
)
"""The same hues on a dark background."""

DASHES = ("", "", "", "", "6 2.5", "6 2.5", "2 2", "6 2.5 2 2.5", "9 3")
"""Lengths of dashes and gaps as in SVG; empty is a solid line."""

COLORS = tuple(zip(PAPER_COLORS, SCREEN_COLORS, DASHES, strict=True))
"""Colour on paper, colour on a dark screen and dashes, by the place of a method."""

_DEPTHS = ("#0b3c5d", "#1f6f8b", "#3fa796", "#9ccf8a", "#f2e394")
"""First layer to last, dark to light: an order that greyscale keeps."""

INK = "#22262e"

Point = tuple[float, float]


@dataclass(frozen=True)
class Palette:
    """Colours by method: the first for the baseline, the others in order."""

    methods: Sequence[str]
    baseline: str

    def place(self, method: str) -> int:
        """Return the place of a method's colour; after the last one they repeat from the second."""
        if method == self.baseline:
            return 0
        others = [each for each in self.methods if each != self.baseline]
        return 1 + others.index(method) % (len(PAPER_COLORS) - 1)

    def color(self, method: str) -> str:
        """Return the colour of a method on paper."""
        return PAPER_COLORS[self.place(method)]

    def line(self, method: str) -> Any:
        """Return the line style of a method for matplotlib."""
        dashes = DASHES[self.place(method)]
        return (0, tuple(map(float, dashes.split()))) if dashes else "solid"


def depths(count: int) -> list[str]:
    """Return colours from the first layer to the last."""
    return [_between(_DEPTHS, i / max(count - 1, 1)) for i in range(count)]


def _between(colors: Sequence[str], share: float) -> str:
    place = share * (len(colors) - 1)
    first = min(int(place), len(colors) - 2)
    one, other = (tuple(bytes.fromhex(colors[i][1:])) for i in (first, first + 1))
    part = place - first
    return "#" + bytes(round(a + (b - a) * part) for a, b in zip(one, other, strict=True)).hex()


@dataclass(frozen=True)
class Frame:
    """A plotting area: the ranges of the data, and where they lie in the drawing."""

    x: Point
    y: Point
    width: float = 440
    height: float = 290
    left: float = 48
    right: float = 14
    top: float = 12
    bottom: float = 42

    def across(self, value: float) -> float:
        """Return the distance of a value from the left."""
        share = (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return self.left + share * (self.width - self.left - self.right)

    def down(self, value: float) -> float:
        """Return the distance of a value from the top."""
        share = (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def points(self, points: Iterable[Point]) -> str:
        """Return points of the data as the attribute of a polyline or polygon."""
        return " ".join(f"{self.across(x):.1f},{self.down(y):.1f}" for x, y in points)

    def svg(self, label: str, elements: Iterable[Markup], css: str = "", **data: str) -> Markup:
        """Return the whole drawing with these elements inside."""
        return tag(
            "svg",
            Markup("").join(elements),
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=label,
            class_=f"chart {css}".strip(),
            **data,
        )

    def axes(self, label: str, x_format: str, y_format: str, x_ticks: bool = True) -> list[Markup]:
        """Return horizontal rules with their values, values along the bottom, and a label below."""
        left, right, base = self.left, self.width - self.right, self.height - self.bottom
        found = []
        for value in ticks(*self.y, 5):
            if y_format == "power" and value != round(value):
                continue
            y = f"{self.down(value):.1f}"
            found.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="rule"))
            shown = FORMATS[y_format](value)
            found.append(tag("text", shown, x=left - 8, y=y, dy="0.33em", class_="tick end"))
        for value in ticks(*self.x, 4 if x_format == "operations" else 6) if x_ticks else ():
            x = f"{self.across(value):.1f}"
            shown = FORMATS[x_format](value)
            found.append(tag("text", shown, x=x, y=base + 17, class_="tick middle"))
        if label:
            middle = (left + right) / 2
            found.append(tag("text", label, x=middle, y=self.height - 6, class_="label middle"))
        return found


def tag(name: str, content: object = "", **attributes: object) -> Markup:
    """Return an element; everything but markup is escaped, and data_x becomes data-x."""
    pairs = "".join(
        f' {_ATTRIBUTES.get(key, key.replace("_", "-"))}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{pairs}>{escape(content)}</{name}>")


def explained(name: str, tip: str, content: object = "", **attributes: object) -> Markup:
    """Return an element with a sentence about it, for pointers and for screen readers."""
    inside = tag("title", tip) + Markup(str(content))
    return tag(name, inside, data_tip=tip, **attributes)


def thinned(points: Sequence[Point], most: int = 160) -> list[Point]:
    """Return at most `most` of the points, evenly chosen."""
    if len(points) <= most:
        return list(points)
    places = [round(i * (len(points) - 1) / (most - 1)) for i in range(most)]
    return [points[place] for place in places]


def short(name: str, most: int = 16) -> str:
    """Return a name, without its middle if it is longer than `most` characters."""
    if len(name) <= most:
        return name
    end = most // 2
    return f"{name[: most - end - 1]}…{name[-end:]}"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round values between two ends."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.10g}") for place in range(first, last + 1)]


FORMATS: dict[str, Callable[[float], str]] = {
    "epoch": lambda value: f"{value:g}",
    "seconds": lambda value: "0" if value == 0 else wording.duration(value).replace(".0 ", " "),
    "operations": lambda value: "0" if value == 0 else wording.operations(value),
    "share": lambda value: f"{value:g}",
    "percent": lambda value: f"{100 * value:.3g} %",
    "times": lambda value: f"{value:g}x",
    "loss": lambda value: f"{value:g}",
    "power": lambda value: f"{10**value:g}",
}
"""Values of an axis as text."""


_ATTRIBUTES = {"class_": "class", "viewBox": "viewBox"}
