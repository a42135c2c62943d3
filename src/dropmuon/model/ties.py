"""Tied weights: one parameter in several modules, and the one layer that it moves with.

An embedding that is tied to the head is used twice: looked up at the bottom, multiplied at the top.
With its earliest use it would move only when backward reaches the bottom. With the head it moves
whenever the head does, and its look-up is left out of the gradient while the layer at its place is
inactive: see `backward.lookups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from torch import nn

from dropmuon.backward.lookups import LookUp
from dropmuon.checks import unknown_name, warn
from dropmuon.model.forward import Uses
from dropmuon.model.outputs import Place
from dropmuon.model.roster import Member

__all__ = ["Tied", "check_tied", "find_lookups", "first_or_head", "rank_of"]

Tied = Literal["first", "head"]


def check_tied(tied: object) -> None:
    """Raise ValueError for a name of no choice."""
    if tied not in ("first", "head"):
        raise unknown_name("tied", str(tied), ["first", "head"])


def rank_of(place: Place, uses: Uses | None) -> float:
    """Return when a module is called or, where that is not known, registered."""
    return place.rank if uses is None else uses.module_rank(place.module)


def first_or_head(places: Sequence[Place], uses: Uses | None, tied: Tied) -> Place:
    """Return the place that a parameter belongs to, of all its places.

    At the head, its record is still that of a table: which layer it moves with changes no norm.
    """
    first = min(places, key=lambda place: rank_of(place, uses))
    if len({id(place.module) for place in places}) == 1:
        return first
    head = _head(places, uses) if tied == "head" else None
    if head is not None:
        head.member.kind = next(place.member.kind for place in places if _looks_up(place))
        return head
    names = ", ".join(repr(place.member.name) for place in places)
    warn(
        f"{names} are one tied parameter: it belongs to its earliest use, {first.member.name!r}, "
        "and moves with that layer only"
    )
    return first


def find_lookups(
    own: Member, places: Sequence[Place], ranked: Iterable[tuple[float, Member]], uses: Uses | None
) -> tuple[LookUp, ...]:
    """Return the look-ups of a weight that belongs to the head, each with what is used after it.

    `ranked` are all parameters in order. After the last of them, a look-up counts to the layer of
    its weight.
    """
    others = [(rank, other.parameter) for rank, other in ranked if other is not own]
    found = []
    for place in filter(_looks_up, places):
        rank = rank_of(place, uses)
        after = [other for other_rank, other in others if other_rank > rank]
        name = place.member.name.rpartition(".")[0]
        found.append(LookUp(name, own.name, (*after, own.parameter), place.module))
    return tuple(found)


def _head(places: Sequence[Place], uses: Uses | None) -> Place | None:
    """Return the last place that multiplies, if there is a look-up before it."""
    lookups = [rank_of(place, uses) for place in places if _looks_up(place)]
    maps = [p for p in places if not _looks_up(p) and rank_of(p, uses) < float("inf")]
    last = max(maps, key=lambda place: rank_of(place, uses), default=None)
    if last is None or not lookups or rank_of(last, uses) < min(lookups):
        return None
    return last


def _looks_up(place: Place) -> bool:
    """Return whether a place is an embedding that has no other parameter to be cut off."""
    return isinstance(place.module, nn.Embedding) and len(list(place.module.parameters())) == 1
