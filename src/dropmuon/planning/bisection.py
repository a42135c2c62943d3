"""An order in which any beginning is spread evenly: for what a time budget may cut short."""

from __future__ import annotations

__all__ = ["bisected"]


def bisected(count: int) -> list[int]:
    """All of 0, ..., count-1: the ends first, then the middles of what lies between."""
    found = list(dict.fromkeys([0, count - 1]))
    gaps = [(0, count - 1)]
    for low, high in gaps:
        middle = (low + high) // 2
        if low < middle < high:
            found.append(middle)
            gaps += [(low, middle), (middle, high)]
    return found
