"""Look-ups of a weight that belongs to another layer: an embedding that is tied to the head.

A tied weight that moves with the head is trainable in nearly every step. Its look-up at the bottom
of the model would then start a gradient there, and backward would run through the whole model to
reach it. So the look-up has a gate: a forward hook that detaches its output while the layer at its
place is not active. The weight then follows the head's part of its gradient alone, and both parts
where backward reaches the bottom anyway.

Detaching is safe here, and only here: the input of a look-up is integers, so nothing else can be
cut off. The gates change when the flags do, between backwards, so checkpointing recomputes with the
gates that the forward had.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dropmuon.checks import warn

__all__ = ["LookUp", "LookUps"]


@dataclass(frozen=True, eq=False)
class LookUp:
    """A module that looks up rows of a weight, and the parameters that are used after it, in order.

    The first of these that is trained has the layer of the look-up: where backward reaches the one,
    it is as good as at the other. `weight` is the name by which the weight has its own layer.
    """

    name: str
    weight: str
    after: tuple[Tensor, ...] = field(repr=False)
    module: nn.Module | None = field(default=None, repr=False)

    def follow(self, replaced: Mapping[Tensor, Tensor]) -> None:
        """Know new parameters in the place of those that they replace."""
        after = tuple(replaced.get(own, own) for own in self.after)
        object.__setattr__(self, "after", after)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the user's module out of pickles of an optimizer."""
        return {**self.__dict__, "module": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> LookUp:
        """Leave the user's module out of copies too, unless it has been copied just before."""
        after = copy.deepcopy(self.after, memo)
        return LookUp(self.name, self.weight, after, memo.get(id(self.module)))


class LookUps:
    """The gates of all look-ups of an optimizer, in step with its active set."""

    def __init__(self) -> None:
        self._gates: dict[LookUp, _Gate] = {}
        self._layer: dict[LookUp, int] = {}
        self._handles: list[RemovableHandle] = []
        self._finalizer = self._close_at_end()

    def arrange(self, found: Iterable[LookUp], layers: Mapping[Tensor, int]) -> None:
        """Give every look-up its layer, and a gate to those that have none yet.

        `layers` are those of the parameters that are trained. Where none of them comes after it, a
        look-up counts to the first layer.
        """
        for each in found:
            self._layer[each] = next((layers[own] for own in each.after if own in layers), 0)
            if each in self._gates:
                continue
            if each.module is None:
                warn(_without_a_gate(each))
            else:
                self._gates[each] = gate = _Gate()
                self._handles.append(_install(gate, each.module))

    def apply(self, active: Collection[int]) -> None:
        """Open the gates of the look-ups whose layers are active, and close the others."""
        for each, gate in self._gates.items():
            gate.is_open = self._layer[each] in active

    def close(self) -> None:
        """Remove the gates, until they are arranged again.

        A copy, which knows no modules, opens its gates instead.
        """
        for gate in self._gates.values():
            gate.is_open = True
        removed = {each: gate for each, gate in self._gates.items() if each.module is not None}
        for each in removed:
            del self._gates[each]
        _remove(removed, self._handles)

    @property
    def obstacle(self) -> str | None:
        """Why the outputs of frozen layers change between the updates of a batch, if they do."""
        return "they follow a look-up of a weight that moves with the head" if self._layer else None

    def notes(self, layers: Sequence[str]) -> list[str]:
        """Return a sentence for each look-up, for a table of these layers."""
        return [
            f"{each.name!r} looks up {each.weight!r}: that part of its gradient is left out while "
            f"{layers[layer]!r} is inactive"
            for each, layer in self._layer.items()
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Keep the gates, which a copy of the model together with the optimizer shares."""
        state = {**self.__dict__, "_handles": [], "_open": self._open_gates()}
        del state["_finalizer"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_open = state.pop("_open")
        self.__dict__.update(state)
        for each, gate in self._gates.items():
            gate.is_open = each in is_open
        self._finalizer = self._close_at_end()

    def _open_gates(self) -> list[LookUp]:
        return [each for each, gate in self._gates.items() if gate.is_open]

    def _close_at_end(self) -> weakref.finalize[..., Any]:
        finalizer = weakref.finalize(self, _remove, self._gates, self._handles)
        finalizer.atexit = False
        return finalizer


class _Gate:
    """A forward hook that detaches the output of a module while it is not open.

    It knows nothing but a flag, so that compiled code can guard it. Copies and pickles of a model
    alone get an open gate, which does nothing.
    """

    def __init__(self) -> None:
        self.is_open = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output if self.is_open or not isinstance(output, Tensor) else output.detach()

    def __reduce__(self) -> tuple[type[_Gate], tuple[()]]:
        return _Gate, ()


def _install(gate: _Gate, module: nn.Module) -> RemovableHandle:
    """Put a gate on a module, before other hooks: they see what a frozen embedding would give.

    A gate of another optimizer goes, as the flags that it had set do; closed, it would stay so.
    """
    hooks = module._forward_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, _Gate)]:
        del hooks[key]
    return module.register_forward_hook(gate, prepend=True)


def _remove(gates: dict[LookUp, _Gate], handles: list[RemovableHandle]) -> None:
    """Open all gates, which compiled code notices, and remove those that can be removed."""
    for gate in gates.values():
        gate.is_open = True
    gates.clear()
    while handles:
        handles.pop().remove()


def _without_a_gate(each: LookUp) -> str:
    return (
        f"{each.name!r} looks up {each.weight!r}, but a copy or pickle of an optimizer that was "
        "released, or of its groups, does not know the module: backward runs to the bottom in "
        "every step. Copy model and optimizer together, as in copy.deepcopy((model, optimizer)), "
        "or make the optimizer anew"
    )
