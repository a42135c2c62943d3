"""Tensors without storage, which stand in for known values that need not be computed.

A `Token` names a value of this batch: the output of a `Call`, whose function and inputs are its
recipe. A `Ghost` is a tensor with the shape and dtype of a token's value. Code that only passes it
on never notices; an operator that reads it gets the value, kept or recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from dropmuon.backward.rng import RandomState

__all__ = ["Call", "Ghost", "Token", "autocast_state", "real", "tensors_in"]


class Token:
    """A value of this batch: one result of a call, and the value itself where it is kept."""

    def __init__(self, call: Call, slot: int, like: Tensor) -> None:
        self.version = like._version
        self.like = (like.size(), like.stride(), like.dtype, like.device)
        self.call, self.slot = call, slot
        self._kept: Tensor | None = None
        self._kept_version = 0

    def keep(self, value: Tensor) -> None:
        """Keep the value: it is consumed in every update."""
        self._kept, self._kept_version = value, value._version

    def kept(self) -> Tensor | None:
        """Return the value, if it was kept and has not been written to since."""
        stale = self._kept is None or self._kept._version != self._kept_version
        return None if stale else self._kept

    def value(self) -> Tensor:
        """Return the value: kept, or recomputed with everything it depends on."""
        value = self.kept()
        if value is None:
            value = _compute(self)
            self.keep(value)
        return value


class Ghost(Tensor):
    """A tensor with shape, dtype and device, and no storage."""

    token: Token
    resolved: Tensor | None

    @staticmethod
    def __new__(cls, token: Token) -> Ghost:
        size, stride, dtype, device = token.like
        ghost = Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=dtype, device=device)
        ghost.token, ghost.resolved = token, None
        return ghost

    def __init__(self, token: Token) -> None:
        super().__init__()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*real(args), **real(kwargs or {}))

    def value(self) -> Tensor:
        """Return the value that this ghost stands for."""
        return self.resolved if self.resolved is not None else self.token.value()

    def become_real(self) -> None:
        """Turn this object into a plain tensor with its value, since someone has kept it."""
        torch.utils.swap_tensors(self, self.value().detach().clone())


class Call:
    """A function and its inputs, as a recipe in which tensors of this batch are tokens."""

    def __init__(
        self, func: Any, args: Any, kwargs: Any, token_of: Callable[[Tensor], Token | None]
    ) -> None:
        self._func = func
        self._inputs = _swap((args, kwargs), Tensor, lambda t: token_of(t) or t)
        self._output: Any = None
        self._written: list[int] = []
        self._tokens: list[Token] = []
        self._autocast = autocast_state()
        self._random: tuple[RandomState, RandomState] | None = None
        self._is_statistic = False

    def note(
        self,
        output: Any,
        inputs: list[Tensor],
        written: list[Tensor],
        random: tuple[RandomState, RandomState] | None,
        is_statistic: bool,
    ) -> list[tuple[Tensor, Token]]:
        """Record what the function returned, wrote and drew; return the token of each tensor."""
        self._random, self._is_statistic = random, is_statistic
        places = {id(tensor): n for n, tensor in enumerate(inputs)}
        results = tensors_in(output)
        new = {id(t): (t, Token(self, n, t)) for n, t in enumerate(results) if id(t) not in places}
        changed = [(t, Token(self, len(results) + n, t)) for n, t in enumerate(written)]
        self._written = [places[id(t)] for t in written]
        self._tokens = [token for _, token in changed]
        self._output = _swap(
            output, Tensor, lambda t: new[id(t)][1] if id(t) in new else _Input(places[id(t)])
        )
        return [*new.values(), *changed]

    def needs(self) -> list[Token]:
        """Return the tokens among the inputs."""
        found: list[Token] = []
        _swap(self._inputs, Token, found.append)
        return found

    def compute(self, value_of: Callable[[Token], Tensor]) -> list[Tensor]:
        """Run the recipe again, with the same random numbers, on private inputs."""
        args, kwargs = _swap(self._inputs, Token, value_of)
        if self._written:
            args, kwargs = _swap((args, kwargs), Tensor, torch.clone)
        if self._is_statistic:
            kwargs = {**kwargs, "running_mean": None, "running_var": None}
        now = RandomState.now()
        if self._random is not None:
            self._random[0].restore()
        around = autocast_state()
        set_autocast(self._autocast)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            output = self._func(*args, **kwargs)
        set_autocast(around)
        now.restore()
        inputs = tensors_in((args, kwargs))
        return tensors_in(output) + [inputs[place] for place in self._written]

    def can_replay(self, args: Any, kwargs: Any) -> bool:
        """Return whether everything that the function would write to is a ghost."""
        inputs = tensors_in((args, kwargs))
        return all(isinstance(inputs[place], Ghost) for place in self._written)

    def replay(self, args: Any, kwargs: Any) -> Any:
        """Return ghosts, and update what the function would: statistics, generators."""
        if self._is_statistic:
            self._func(*real(args), **real(kwargs))
        if self._random is not None:
            self._random[1].restore()
        inputs = tensors_in((args, kwargs))
        for place, token in zip(self._written, self._tokens, strict=True):
            cast(Ghost, inputs[place]).token = token
        ghosts = _swap(self._output, Token, Ghost)
        return _swap(ghosts, _Input, lambda passed: inputs[passed.place])

    def forget(self) -> None:
        """Release all values: nothing will be replayed after this."""
        self._output, self._tokens = None, []


def _compute(token: Token) -> Tensor:
    """Run the recipes that a value needs, in order, and keep no intermediate values."""
    results: dict[Call, list[Tensor]] = {}

    def value_of(needed: Token) -> Tensor:
        kept = needed.kept()
        return results[needed.call][needed.slot] if kept is None else kept

    waiting = [token.call]
    while waiting:
        call = waiting[-1]
        unknown = [t.call for t in call.needs() if t.kept() is None and t.call not in results]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        if call not in results:
            results[call] = call.compute(value_of)
    return results[token.call][token.slot]


class _Input:
    """A placeholder for an output that is one of the inputs."""

    def __init__(self, place: int) -> None:
        self.place = place


Autocast = tuple[tuple[str, bool, torch.dtype], ...]


def autocast_state() -> Autocast:
    """Return whether and to what functions cast their inputs now, by device."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )


def set_autocast(state: Autocast) -> None:
    """Cast as in this state from now on."""
    for device, enabled, dtype in state:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def real(tree: Any, values: Mapping[int, Tensor] | None = None) -> Any:
    """Return arguments with values in place of ghosts: those given by identity, or their own."""
    known = values or {}
    return _swap(tree, Ghost, lambda ghost: known[id(ghost)] if known else ghost.value())


def tensors_in(tree: Any) -> list[Tensor]:
    """Return all tensors of nested arguments, in order."""
    found: list[Tensor] = []
    _swap(tree, Tensor, found.append)
    return found


def _swap(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested lists, tuples and dicts with every item of a kind changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {name: _swap(item, kind, change) for name, item in tree.items()}
    if isinstance(tree, list | tuple) and type(tree) is not torch.Size:
        items = [_swap(item, kind, change) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree
