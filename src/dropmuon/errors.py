"""How dropmuon says no: one sentence with the argument, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["unknown_name"]


def unknown_name(argument: str, given: str, accepted: Iterable[str]) -> ValueError:
    """An error for a misspelt name, with the nearest accepted one."""
    names = sorted(accepted)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{argument} must be one of {', '.join(names)}, got {given!r}{hint}")
