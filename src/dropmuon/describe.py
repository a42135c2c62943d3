"""An optimizer as a table: layer, parameters, shapes, norm, and why that norm."""

from __future__ import annotations

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
        shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        names = ", ".join(name.rpartition(".")[2] for name in self.names)
        return (self.layer, f"{names} ({short_count(self.count)})", shapes, self.norm, self.reason)


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


def short_count(count: int) -> str:
    """1234567 as 1.23M."""
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
