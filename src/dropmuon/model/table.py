"""An optimizer as a table: layer, parameters, shapes, norm, and why that norm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dropmuon.text import aligned, short_count

__all__ = ["Row", "table"]

_HEADERS = ("layer", "parameters", "shapes", "norm", "why")


@dataclass(frozen=True)
class Row:
    """One line: the parameters of one layer that share a norm."""

    layer: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    count: int
    norm: str
    reason: str

    def cells(self) -> tuple[str, ...]:
        """What is printed."""
        inside = [name.removeprefix(f"{self.layer}.") for name in self.names]
        names = f"{_some(inside)} ({short_count(self.count)})"
        texts = Counter("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        shapes = [text if count == 1 else f"{count} of {text}" for text, count in texts.items()]
        return (self.layer, names, _some(shapes), self.norm, self.reason)


def table(title: str, rows: Sequence[Row]) -> str:
    """A plain text table; a layer's name is printed once."""
    cells, last = [], None
    for row in rows:
        cell = row.cells()
        cells.append(("", *cell[1:]) if cell[0] == last else cell)
        last = cell[0]
    return f"{title}\n\n{aligned(_HEADERS, cells)}"


def _some(texts: Sequence[str], most: int = 4) -> str:
    """The first texts of a list, and how many more there are."""
    more = len(texts) - most
    return ", ".join([*texts[:most], f"{more} more"] if more > 1 else texts)
