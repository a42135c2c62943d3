"""One colour and one dash pattern per method, which colour-blind readers can tell apart too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["COLORS", "INK", "Palette", "depths"]

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
