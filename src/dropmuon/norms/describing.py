"""A stable text for a setting: what a checkpoint stores, and compares when it is loaded."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

__all__ = ["Described", "describe"]


class Described:
    """Gives a dataclass a complete `repr` that is the same in every process."""

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        body = ", ".join(f"{f.name}={describe(getattr(self, f.name))}" for f in fields if f.repr)
        return f"{type(self).__name__}({body})"


def describe(value: Any) -> str:
    """`repr(value)`, but a function is its dotted name and no memory address is ever shown."""
    name = getattr(value, "__qualname__", None)
    if callable(value) and name is not None:
        return f"{getattr(value, '__module__', None)}.{name}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
