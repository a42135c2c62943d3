"""Checks of arguments, with messages that name the argument, the value and the remedy; imports."""

from __future__ import annotations

import difflib
import importlib
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any, SupportsIndex

__all__ = [
    "import_extra",
    "kind_of",
    "nonnegative_number",
    "on_demand",
    "unknown_name",
    "warn",
    "whole_number",
]


def whole_number(
    name: str, value: object, *, least: int = 1, most: int | None = None, remedy: str = ""
) -> int:
    """Return `value` as an int from `least` to `most`, or reject it by the argument's name."""
    number = _index(value)
    if number is not None and least <= number and (most is None or number <= most):
        return number
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    end = f"; {remedy}" if remedy else ""
    raise ValueError(f"{name} must be a whole number {wanted}, got {value!r}{end}")


def nonnegative_number(name: str, value: object) -> float:
    """Return `value` as a finite float of at least 0, or reject it by the argument's name."""
    if not isinstance(value, bool) and isinstance(value, Real):
        with suppress(OverflowError):
            number = float(value)
            if math.isfinite(number) and number >= 0:
                return number
    raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def unknown_name(argument: str, given: str, accepted: Iterable[str]) -> ValueError:
    """Make an error for a misspelt name, with the nearest accepted one."""
    names = sorted(accepted)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{argument} must be one of {', '.join(names)}, got {given!r}{hint}")


def kind_of(value: object) -> str:
    """Return what a value is, for a sentence: "a float", "the class Linear"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def import_extra(module: str, extra: str) -> Any:
    """Import a module, or raise an error that names the extra of dropmuon to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}; install the {extra} extra: pip install '.[{extra}]' in a clone of dropmuon"
        ) from error


def on_demand(
    package: str, places: Mapping[str, str], extras: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports names when they are first used.

    `places` has "module" or "module:name" for each name, `extras` the extra of dropmuon that some
    of them need.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        extra = (extras or {}).get(name)
        found = importlib.import_module(module) if extra is None else import_extra(module, extra)
        value = getattr(found, attribute) if attribute else found
        setattr(sys.modules[package], name, value)
        return value

    return find


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's own code that led here, however deep the call."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _index(value: object) -> int | None:
    """Return a value as an int if it is a whole number, and neither a bool nor an array."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    if "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _is_inside(file: str) -> bool:
    """Return whether a file belongs to this package or to torch."""
    homes = [Path(__file__).parent, *map(Path, getattr(sys.modules.get("torch"), "__path__", ()))]
    return any(Path(file).is_relative_to(home) for home in homes)
