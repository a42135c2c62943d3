"""The layers of a model, as an ordered list.

Every trainable parameter of a model is in exactly one layer. Layers are ordered by execution where
an example input is given, by registration otherwise. The order decides only how much is saved,
never what is computed: see `backward.flags`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dropmuon.checks import unknown_name, warn
from dropmuon.model.blocks import block_labels
from dropmuon.model.forward import Uses, first_uses
from dropmuon.model.names import clean_name, owner_label, unwrap
from dropmuon.model.outputs import (
    Place,
    Tied,
    check_tied,
    find_lookups,
    first_or_head,
    mark_outputs,
    rank_of,
)
from dropmuon.model.roster import Member, Roster

__all__ = ["By", "Structure", "model_layers", "numbered"]

By = Literal["module", "block"] | Callable[[str, nn.Parameter], Hashable]

_NEVER = 1 << 62


def model_layers(
    model: nn.Module,
    by: By = "module",
    example: Any = None,
    include_frozen: bool = False,
    tied: Tied = "head",
) -> Roster:
    """Return the layers of a model, in order; norms are not chosen yet."""
    return Structure(model, by, example, tied).roster(include_frozen)


class Structure:
    """Where every parameter of a model belongs, including what is frozen and may be added later."""

    def __init__(
        self, model: nn.Module, by: By = "module", example: Any = None, tied: Tied = "head"
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        check_tied(tied)
        self.model, self._by, self._tied = model, by, tied
        found, self._unreached = _members(model, example, tied)
        self._layers = _labelled(model, by, found)
        self._order = list(map(str, self._layers))
        self._places = {
            member.parameter: (str(label), member)
            for label, own in self._layers.items()
            for member in own
        }

    def roster(self, include_frozen: bool = False) -> Roster:
        """Return the layers, without those that are frozen as a whole unless asked for."""
        layers = {
            label: own
            for label, own in self._layers.items()
            if include_frozen or any(member.is_wanted for member in own)
        }
        if not layers:
            raise ValueError(_nothing_to_train(self.model, has_parameters=bool(self._places)))
        return numbered(_adopt_unreached(layers, self._unreached))

    def place(self, parameter: object) -> tuple[str, Member] | None:
        """Return the layer and the record of a parameter, if it is one of the model's.

        The model may have grown since: then it is read again, in order of registration.
        """
        if not isinstance(parameter, Tensor):
            return None
        if parameter not in self._places and any(parameter is p for p in self.model.parameters()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what was to be said has been said before
                self._grow(Structure(self.model, self._by, tied=self._tied))
        return self._places.get(parameter)

    def position(self, layer: Hashable) -> int:
        """Return where a layer is in the order of layers; what is not of the model comes last."""
        return self._order.index(layer) if layer in self._order else len(self._order)

    @property
    def records(self) -> dict[Tensor, Member]:
        """The record of every parameter, by the parameter."""
        return {parameter: member for parameter, (_, member) in self._places.items()}

    def follow(self, replaced: Mapping[Tensor, Tensor]) -> None:
        """Know new parameters in the place of those that they replace."""
        for member in self.records.values():
            member.parameter = replaced.get(member.parameter, member.parameter)
        self._places = {replaced.get(old, old): place for old, place in self._places.items()}

    def _grow(self, other: Structure) -> None:
        """Take over the places of new parameters; their layers follow those that precede them."""
        self._places = {**other._places, **self._places}
        for index, layer in enumerate(other._order):
            if layer not in self._order:
                before = [each for each in other._order[:index] if each in self._order]
                at = self._order.index(before[-1]) + 1 if before else 0
                self._order.insert(at, layer)


def numbered(layers: Mapping[Hashable, Sequence[Member]]) -> Roster:
    """Return labelled layers as a roster, with the layer of each member set."""
    for index, members in enumerate(layers.values()):
        for member in members:
            member.layer, member.num_layers = index, len(layers)
    return Roster(tuple(map(str, layers)), tuple(map(tuple, layers.values())))


def _members(model: nn.Module, example: Any, tied: Tied) -> tuple[list[Member], set[Tensor]]:
    """Return every parameter once, where it belongs, in order; and those never used."""
    model = unwrap(model)
    uses = first_uses(model, example) if example is not None else None
    all_places = _places(model)
    ranked: list[tuple[float, Member]] = []
    at_head: list[tuple[Member, list[Place]]] = []
    unreached: set[Tensor] = set()
    for places in all_places.values():
        own = first_or_head(places, uses, tied)
        member, rank = own.member, rank_of(own, uses)
        if own is not min(places, key=lambda place: rank_of(place, uses)):
            at_head.append((member, places))
        elif uses is not None:
            rank = uses.parameters.get(id(member.parameter), _NEVER)
            if rank == _NEVER:
                unreached.add(member.parameter)
        ranked.append((rank, member))
    ranked.sort(key=lambda pair: pair[0])
    members = [member for _, member in ranked]
    for member, places in at_head:
        member.lookups = find_lookups(member, places, ranked, uses)
    mark_outputs(model, _in_order(all_places, members, uses))
    return members, unreached


def _places(model: nn.Module) -> dict[int, list[Place]]:
    """Return all the places of each parameter, by identity, in order of registration."""
    places: dict[int, list[Place]] = {}
    rank = 0
    for path, module in model.named_modules():
        parent = model.get_submodule(path.rpartition(".")[0]) if path else None
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = clean_name(f"{path}.{name}" if path else name)
            if is_lazy(parameter):
                raise ValueError(
                    f"params has {full!r}, which has no shape yet; run the model once on an input "
                    "before creating the optimizer"
                )
            member = Member(full, parameter, module, parent=parent)
            place = Place(path, module, member, rank)
            rank += 1
            places.setdefault(id(parameter), []).append(place)
    return places


def _in_order(
    places: Mapping[int, Sequence[Place]], members: Sequence[Member], uses: Uses | None
) -> list[Place]:
    """Return all places in order of use, or of registration, each with its parameter's one record.

    What no forward reaches has no place in an order of use. A module that uses a tied parameter
    later than others uses it when it is called.
    """
    records = {id(member.parameter): member for member in members}
    ranked: list[tuple[float, Place]] = []
    for own in places.values():
        for place in own:
            parameter, rank = id(place.member.parameter), float(place.rank)
            if uses is not None:
                tied = len(own) > 1
                used = uses.parameters.get(parameter, math.inf)
                rank = uses.module_rank(place.module) if tied else used
            if rank < math.inf:
                ranked.append((rank, replace(place, member=records[parameter])))
    return [place for _, place in sorted(ranked, key=lambda pair: pair[0])]


def _labelled(model: nn.Module, by: By, members: Sequence[Member]) -> dict[Hashable, list[Member]]:
    label = _labeller(model, by, members)
    layers: dict[Hashable, list[Member]] = {}
    for member in members:
        layers.setdefault(label(member), []).append(member)
    return layers


def _labeller(model: nn.Module, by: By, members: Sequence[Member]) -> Callable[[Member], Hashable]:
    if callable(by):
        return lambda member: by(member.name, member.parameter)  # type: ignore[arg-type]
    if by not in ("module", "block"):
        raise _unknown_by(by)
    if by == "module":
        return lambda member: owner_label(member.name, member.module)
    labels = block_labels(unwrap(model), members)
    return lambda member: labels[member.name]


def _unknown_by(given: object) -> Exception:
    if isinstance(given, str):
        return unknown_name("by", given, ["module", "block"])
    return TypeError(f"by must be 'module', 'block' or a callable, got {given!r}")


def _adopt_unreached(
    layers: Mapping[Hashable, list[Member]], unreached: set[Tensor]
) -> Mapping[Hashable, list[Member]]:
    """Join layers that no forward reaches to the first reached one, so that none is drawn alone."""
    dead = {k: own for k, own in layers.items() if all(m.parameter in unreached for m in own)}
    if not dead:
        return layers
    lost = [member for own in dead.values() for member in own]
    names = ", ".join(repr(member.name) for member in lost)
    warn(f"the example's forward does not reach {names}; they were put into the first layer")
    live = {name: own for name, own in layers.items() if name not in dead}
    if not live:
        raise ValueError("example reaches no parameter of the model; give an input that it uses")
    first = next(iter(live))
    return {**live, first: live[first] + lost}


def _nothing_to_train(model: nn.Module, has_parameters: bool) -> str:
    kind = type(model).__name__
    if not has_parameters:
        return f"params has nothing to optimize: {kind} has no parameters"
    return (
        f"params has nothing to optimize: all parameters of {kind} are frozen; "
        "call requires_grad_(True) on those to train"
    )
