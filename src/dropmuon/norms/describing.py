"""A setting as text: `repr` is complete and stable, `str` says only what is not the default."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

__all__ = ["Described", "describe"]


class Described:
    """Gives a dataclass a complete `repr` that is the same in every process, and a short `str`."""

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        body = ", ".join(f"{f.name}={describe(getattr(self, f.name))}" for f in fields if f.repr)
        return f"{type(self).__name__}({body})"

    def __str__(self) -> str:
        default = type(self)()
        fields = [f.name for f in dataclasses.fields(self) if f.repr]  # type: ignore[arg-type]
        special = [name for name in fields if getattr(self, name) != getattr(default, name)]
        body = ", ".join(f"{name}={getattr(self, name)}" for name in special)
        return f"{type(self).__name__}({body})" if body else type(self).__name__


def describe(value: Any) -> str:
    """`repr(value)`, but a function is its dotted name and no memory address is ever shown."""
    name = getattr(value, "__qualname__", None)
    if callable(value) and name is not None:
        return f"{getattr(value, '__module__', None)}.{name}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
