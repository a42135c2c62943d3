"""An optimizer as a table: layer, parameters, shapes, norm, and why that norm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Row", "short_count", "table"]

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
    """A plain text table, aligned; a layer's name is printed once."""
    cells = [_HEADERS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADERS))]
    rule = "  ".join("-" * width for width in widths)
    lines, last = [title, ""], None
    for n, line in enumerate(cells):
        shown = ("", *line[1:]) if n and line[0] == last else line
        last = line[0]
        padded = (cell.ljust(width) for cell, width in zip(shown, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
        if n == 0:
            lines.append(rule)
    return "\n".join(lines)


def _some(texts: Sequence[str], most: int = 4) -> str:
    """The first texts of a list, and how many more there are."""
    more = len(texts) - most
    return ", ".join([*texts[:most], f"{more} more"] if more > 1 else texts)


def short_count(count: int) -> str:
    """1234567 as 1.23M."""
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
