"""How much layers compute: the operations of a step's passes and updates, counted from shapes.

Counts, not times: they must not depend on the machine, and be equal on ranks that see equal shapes.
A linear map costs as much as its forward pass again for the gradient of its weight, where that is
trained, and again for the gradient of its input, where anything that runs before it is. So one
forward pass tells what every active set would cost. What has no parameters, such as attention
scores, is left out: it grows with the layers around it. So are passes that checkpoints repeat.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from dropmuon.model.compiled import compiled_modules
from dropmuon.model.kinds import Kind, kind_of_parameter
from dropmuon.model.names import unwrap
from dropmuon.model.roster import Member, Roster
from dropmuon.norms import AdamW, Norm, Spectral, Split, Transposed
from dropmuon.norms.orthogonalizers import Orthogonalizer
from dropmuon.samplers import ActiveSet

__all__ = ["EXTRA_OPERATIONS", "Work"]

_PRODUCTS = 15
"""Products of m^2 n in an orthogonalisation that cannot be counted: five iterations of three."""


class Work:
    """Counts the operations of all passes until it is closed, by the layers that need them.

    `model` shows what else computes: matrices that are frozen, and other uses of tied weights.
    Sets of layers are written as bits of a number.
    """

    def __init__(self, roster: Roster, model: nn.Module | None = None) -> None:
        self._roster = roster
        self._sites = list(_sites(roster, model))
        self._positions: dict[_Map, float] = {}
        self._gradients: dict[int, float] = {}
        self._table: _Table | None = None
        self._called: set[int] = set()
        self._before = 0
        self._knows_passes = False
        compiled = set() if model is None else compiled_modules(model)
        me = weakref.ref(self)
        self._handles = [
            site.module.register_forward_hook(_Look(me, index), with_kwargs=True)
            for index, site in enumerate(self._sites)
            if site.module is not None
            and site.module not in compiled
            and not isinstance(site.module, torch.jit.ScriptModule)  # has no hooks
        ]
        root = None if model is None else unwrap(model)
        if self._handles and root is not None and root not in compiled:
            self._handles.append(root.register_forward_pre_hook(_Look(me)))
        weakref.finalize(self, _remove, self._handles).atexit = False

    def begin(self) -> None:
        """Begin a pass through the whole model."""
        if torch._C._current_graph_task_id() == -1:
            self._knows_passes = True
            self._called, self._before = set(), 0

    def see(self, index: int, inputs: Any, output: Any) -> None:
        """Count a call of a module, after all those that it has made itself.

        Where the model is never called as a whole, a second call of a module begins another pass.
        """
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        if index in self._called and not self._knows_passes:
            self._called, self._before = set(), 0
        self._called.add(index)
        site = self._sites[index]
        for each in site.maps:
            positions = _positions(site.module, each, inputs, output)
            if positions is not None:
                self._positions[each] = self._positions.get(each, 0.0) + positions
                _add(self._gradients, each, positions, self._before)
        self._before |= site.layers

    def close(self) -> None:
        """Stop counting."""
        if self._handles:
            _remove(self._handles)
            self._table = None

    def costs(self, turns: int) -> tuple[float, list[float]]:
        """Return the fixed cost of a step, and what backward costs more for each layer lower down.

        Fixed are the forward pass and the updates.
        """
        table, layers = self._read(), len(self._roster)
        down_to = [table.backward(range(layer, layers)) for layer in range(layers)]
        backward = [own - above for own, above in zip(down_to, [*down_to[1:], 0.0], strict=True)]
        return table.forward + table.update(range(layers), None) / turns, backward

    @property
    def has_seen(self) -> bool:
        """Whether any pass was counted."""
        return bool(self._positions)

    def saved(
        self, sets: Sequence[ActiveSet], moving: ActiveSet, turn: int | None, updates: int = 1
    ) -> float | None:
        """Return the share of a full step's operations that a step saves; None if not known.

        It has parts of equal size with these active sets, and moves these layers, so far as it is
        their turn; `updates` times, as what was counted. In a full step all parts are for all
        layers, and all of them move.
        """
        table, everyone = self._read(), range(len(self._roster))
        full = table.forward + table.backward(everyone) + updates * table.update(everyone, None)
        if not self.has_seen or full == 0:
            return None
        backward = sum(map(table.backward, sets)) / len(sets)
        return 1.0 - (table.forward + backward + updates * table.update(moving, turn)) / full

    def _read(self) -> _Table:
        """Return what was counted, which does not change any more after the end."""
        if self._table is None or self._handles:
            self._table = self._counted()
        return self._table

    def _counted(self) -> _Table:
        """Put together what was seen and what was not.

        A weight whose use was not seen counts as if it came in order of registration, and met as
        many positions as the others.
        """
        typical = max(self._positions.values(), default=1.0)
        forward, gradients, before = 0.0, self._gradients.copy(), 0
        for site in self._sites:
            for each in site.maps:
                positions = self._positions.get(each, typical)
                forward += 2.0 * each.entries * positions
                if each not in self._positions:
                    _add(gradients, each, positions, before)
            before |= site.layers
        return _Table(forward, gradients, _updates(self._roster.members()))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out hooks and modules: a copy counts nothing more."""
        sites = [_Site(None, site.layers, site.maps) for site in self._sites]
        return {**self.__dict__, "_handles": [], "_sites": sites}


@dataclass(frozen=True, eq=False)
class _Table:
    """Operations of a forward pass, of updates, and of gradients by who needs them.

    Keys are sets of layers, as bits: one of them must be active. A chain has two sets per layer.
    """

    forward: float
    gradients: dict[int, float]
    updates: list[tuple[Member, float]]

    def backward(self, active: Collection[int]) -> float:
        """Return the operations of a backward for these layers."""
        bits = sum(1 << layer for layer in active)
        return sum(number for layers, number in self.gradients.items() if layers & bits)

    def update(self, moving: Collection[int], turn: int | None) -> float:
        """Return the operations of the updates of layers, so far as it is their turn."""
        layers = {*moving}
        return sum(
            number
            for member, number in self.updates
            if member.layer in layers and (turn is None or member.turn in (None, turn))
        )


@dataclass(frozen=True, eq=False)
class _Map:
    """A use of a parameter as a linear map; `layer` is that of its weight, as a bit, if trained."""

    entries: int
    layer: int
    experts: int


@dataclass(frozen=True, eq=False)
class _Site:
    """A module that uses parameters: its maps, and the layers whose gradients begin in it."""

    module: nn.Module | None
    layers: int
    maps: tuple[_Map, ...]


def _sites(roster: Roster, model: nn.Module | None) -> Iterator[_Site]:
    """Find what uses parameters, in order of registration; what is not in the model comes last.

    A look-up that has a gate begins a gradient only where the layer at its place is active.
    """
    trained = {m.parameter: 1 << m.layer for m in roster.members() if m.is_wanted}
    gates = {
        lookup.module: next((trained[own] for own in lookup.after if own in trained), 1)
        for member in roster.members()
        for lookup in member.lookups
    }
    uses: dict[nn.Module, list[tuple[Tensor, Kind]]] = {}
    whole = nn.Module() if model is None else unwrap(model)
    for path, module in whole.named_modules():
        owner = f".{path}".partition(".parametrizations.")[0].removeprefix(".")
        own = module.named_parameters(path, recurse=False, remove_duplicate=False)
        for name, parameter in own:
            use = parameter, kind_of_parameter(name, parameter.shape, module)
            uses.setdefault(whole.get_submodule(owner), []).append(use)
    for module, found in uses.items():
        layers = 0
        for parameter, _ in found:
            layers |= gates.get(module, trained.get(parameter, 0))
        yield _Site(module, layers, tuple(_maps(found, trained)))
    known = {parameter for found in uses.values() for parameter, _ in found}
    for member in roster.members():
        if member.parameter not in known:
            maps = tuple(_maps([(member.parameter, member.kind)], trained))
            yield _Site(member.module, trained.get(member.parameter, 0), maps)


def _maps(uses: Iterable[tuple[Tensor, Kind]], trained: Mapping[Tensor, int]) -> Iterator[_Map]:
    for parameter, kind in uses:
        if kind.role in ("matrix", "convolution", "stack"):
            yield _Map(parameter.numel(), trained.get(parameter, 0), kind.experts)


def _positions(module: nn.Module | None, each: _Map, inputs: Any, output: Any) -> float | None:
    """Return how many vectors a linear map was applied to; None if that cannot be seen.

    Experts are applied to those that integers among the inputs send to them.
    """
    if each.experts > 1:
        for value in tree_iter(inputs):
            if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
                return value.numel() / each.experts
    found = inputs if getattr(module, "transposed", False) else output
    tensor = next((value for value in tree_iter(found) if isinstance(value, Tensor)), None)
    if tensor is None or tensor.ndim == 0:
        return None
    is_convolution = isinstance(module, nn.modules.conv._ConvNd)
    channels = tensor.shape[1 if is_convolution else -1]
    return tensor.numel() / max(channels, 1)


def _updates(members: Iterable[Member]) -> list[tuple[Member, float]]:
    """Return the operations of each update, counted once per norm and shape, without storage."""
    known: dict[Any, float] = {}
    found: list[tuple[Member, float]] = []
    for member in members:
        estimate = 2.0 * _PRODUCTS * member.direction_cost
        if estimate > 0 and member.is_wanted and not isinstance(member.norm, AdamW):
            key = (member.norm, member.parameter.shape, member.parameter.dtype)
            if key not in known:
                can_count = _is_ours(member.norm)
                known[key] = _direction(member.norm, member.parameter) if can_count else estimate
            found.append((member, known[key]))
    return found


def _is_ours(norm: Norm) -> bool:
    """Return whether a unit direction can be computed without numbers: not by a user's function."""
    while isinstance(norm, Transposed | Split):
        norm = norm.base
    return isinstance(norm, Spectral) and isinstance(norm.orthogonalize, Orthogonalizer)


def _direction(norm: Norm, parameter: Tensor) -> float:
    """Return the operations of a unit direction."""
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    with (
        _disable_current_modes(),  # a user may be counting too
        FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter,
    ):
        norm.unit_direction(empty)
    return float(counter.get_total_flops())


def _svd_operations(shape: torch.Size, *_: object, **__: object) -> int:
    """Return the cost of a thin SVD: 14 m n^2 + 8 n^3 (Golub and Van Loan, 8.6)."""
    *batch, rows, columns = shape
    m, n = max(rows, columns), min(rows, columns)
    return math.prod(batch) * (14 * m * n * n + 8 * n**3)


EXTRA_OPERATIONS = {torch.ops.aten._linalg_svd: _svd_operations}
"""Formulas for operators that `FlopCounterMode` does not count itself."""


def _add(gradients: dict[int, float], each: _Map, positions: float, before: int) -> None:
    """Count the two products of a backward, each by the layers of which one must be active."""
    for layers in (each.layer, before):
        if layers:
            gradients[layers] = gradients.get(layers, 0.0) + 2.0 * each.entries * positions


class _Look:
    """A hook after the forward of a site or, without an index, before that of the model.

    Copies and pickles of a model get one that sees nothing.
    """

    def __init__(self, work: weakref.ref[Work] | None = None, index: int | None = None) -> None:
        self._work, self._index = work, index

    def __call__(self, module: nn.Module, *seen: Any) -> None:
        work = self._work() if self._work is not None else None
        if work is None or torch.compiler.is_compiling():
            return
        if self._index is None:
            work.begin()
        else:
            *inputs, output = seen
            work.see(self._index, inputs, output)

    def __reduce__(self) -> tuple[type[_Look], tuple[()]]:
        return _Look, ()


def _remove(handles: list[RemovableHandle]) -> None:
    while handles:
        handles.pop().remove()
