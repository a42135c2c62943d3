"""Kinds of Drop-Muon by name: what stands after `drop-muon:`, as a sampler and arguments.

To add a kind, add a line to `_FIXED`, or to `_WITH_NUMBER` if its name ends in a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from dropmuon.checks import unknown_name, whole_number
from dropmuon.samplers import (
    Full,
    Nice,
    Progressive,
    RandomSubset,
    Sampler,
    Shares,
    Submodel,
    by_name,
    epoch_shift,
)

__all__ = ["PLANNED", "PREFIX", "Kind", "kind_named", "kind_names"]

PREFIX = "drop-muon:"

PLANNED = "planned"
"""The kind whose sampler comes from the planner."""

Make = Callable[[int, Mapping[str, Any]], Sampler]
"""A function of the number of layers and the method's options."""


@dataclass(frozen=True)
class Kind:
    """A kind of Drop-Muon.

    Attributes:
        make: its sampler.
        arguments: of `DropMuon`, unless the method's options say otherwise.
        options: options that only this kind has.
    """

    make: Make
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: frozenset[str] = frozenset()


def kind_named(name: str) -> Kind:
    """Return the kind of this name; an unknown one is an error that lists them."""
    in_parts = re.fullmatch(r"parts-(\d+)(?::(.+))?", name)
    if in_parts is not None:
        return _in_parts(int(in_parts[1]), in_parts[2])
    numbered = re.fullmatch(r"([a-z]+)-(\d+)", name)
    if numbered is not None and numbered[1] in _WITH_NUMBER:
        return _WITH_NUMBER[numbered[1]](int(numbered[2]))
    if name not in _FIXED:
        raise unknown_name("method", PREFIX + name, [PREFIX + each for each in kind_names()])
    return _FIXED[name]


def kind_names() -> list[str]:
    """Return all names, with letters where numbers go."""
    return [*_FIXED, "nice-TAU", "submodel-TAU", "turns-R", "parts-M", "parts-M:KIND"]


def _in_parts(parts: int, rest: str | None) -> Kind:
    """Return `parts-M`, `parts-M:1/4` (shares), or `parts-M:KIND`."""
    whole_number("parts", parts)
    share = _share(rest, parts)
    if share is not None:
        return Kind(_flat(share), {"parts": parts}, frozenset({"shares"}))
    inner = kind_named(str(rest))
    if "parts" in inner.arguments:
        raise ValueError(
            f"parts must be given once, got 'parts-{parts}:{rest}'; leave one of them out"
        )
    return replace(inner, arguments={**inner.arguments, "parts": parts})


def _share(text: str | None, parts: int) -> float | None:
    """Return the share of hidden layers, 1/M if nothing is said; None for the name of a kind."""
    if text is None:
        return 1 / parts
    if re.fullmatch(r"\d+(\.\d+|/\d+)?", text) is None:
        return None
    numerator, _, denominator = text.partition("/")
    share = float(Fraction(numerator) / Fraction(denominator or 1)) if denominator != "0" else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"share of a method in parts must be in (0, 1], got {text!r}; give 1/4")
    return share


def _flat(share: float) -> Make:
    """Return shares that are equal for all layers but the last, which takes the whole batch."""

    def make(layers: int, options: Mapping[str, Any]) -> Sampler:
        return Shares(options.get("shares", [share] * (layers - 1) + [1.0]))

    return make


def _always(sampler: Callable[[], Sampler]) -> Make:
    return lambda layers, options: sampler()


def _named(name: str) -> Make:
    return _always(lambda: by_name(name))


def _with_tau(make: Callable[[int], Sampler]) -> Callable[[int], Kind]:
    def kind(tau: int) -> Kind:
        made = make(tau)
        return Kind(_always(lambda: made))

    return kind


def _turns(turns: int) -> Kind:
    return Kind(_always(Full), {"turns": whole_number("turns", turns)})


def _epoch_shift(layers: int, options: Mapping[str, Any]) -> Sampler:
    return Progressive(epoch_shift(float(options.get("alpha", 0.5)), options.get("epochs")))


def _progressive(layers: int, options: Mapping[str, Any]) -> Sampler:
    if "probabilities" not in options:
        raise ValueError(
            "option probabilities must be given for drop-muon:progressive, one per layer, such as "
            "those of theory.optimal_progressive; drop-muon:uniform has equal ones"
        )
    return Progressive(options["probabilities"])


def _unplanned(layers: int, options: Mapping[str, Any]) -> Sampler:
    raise ValueError("method drop-muon:planned needs a plan, got none; make one first")


_FIXED: dict[str, Kind] = {
    **{name: Kind(_named(name)) for name in ("uniform", "linear", "quadratic", "exponential")},
    "epoch-shift": Kind(_epoch_shift, options=frozenset({"alpha", "epochs"})),
    "progressive": Kind(_progressive, options=frozenset({"probabilities"})),
    "adaptive": Kind(_named("adaptive"), {"parts": 8}),
    "random-subset": Kind(_always(RandomSubset)),
    PLANNED: Kind(_unplanned),
}

_WITH_NUMBER: dict[str, Callable[[int], Kind]] = {
    "nice": _with_tau(Nice),
    "submodel": _with_tau(Submodel),
    "turns": _turns,
}
