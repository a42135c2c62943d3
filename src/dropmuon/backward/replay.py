"""The reuse of a frozen prefix: what no update of a batch can change is computed only once.

During `step(closure)` with several updates per batch, every torch function of the forward pass is
watched. One whose inputs carry no gradient and are known (a parameter or a batch, by identity and
version, or the output of another such function) gives the same output in the next update. There the
output is not computed: a `Ghost` stands in for it, a tensor with a shape and no storage. What the
active layers consume is kept, and passed to them in place of its ghost; anything else that is
needed is recomputed from its recipe. Nothing is assumed about the model, whose code runs unchanged.

Every update starts from the same state of the random number generators, since it uses the same
sample; a replayed function that drew random numbers leaves the generators where it left them.
Batch statistics are accumulated in every update.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dropmuon.backward.ghosts import Call, Ghost, Token, autocast_state, real, tensors_in
from dropmuon.backward.rng import RandomState
from dropmuon.backward.torch_functions import (
    METADATA,
    OPAQUE,
    PLAIN,
    TROUBLE,
    accumulates_statistics,
    bound,
    is_made_of_tensors,
    writes,
)

__all__ = ["Replay", "is_compiled", "obstacle"]


class Replay:
    """The updates of one batch: the first records, the others replay."""

    def __init__(
        self, updates: int, frozen: bool, warn: Callable[[str], None], against: str | None = None
    ) -> None:
        self._is_one = updates == 1
        self._watch = _Watch(warn) if updates > 1 and frozen else None
        self._start: RandomState | None = None
        if self._watch is not None and against is not None:
            self._watch.give_up(against)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._watch is not None:
            self._watch.forget()

    @contextmanager
    def update(self, number: int) -> Iterator[None]:
        """Run the closure of one update inside the block."""
        if self._is_one:
            yield
            return
        if self._start is None:
            self._start = RandomState.now()
        self._start.restore()
        if self._watch is None:
            yield
            return
        self._watch.recording = number == 0
        with self._watch if self._watch.safe else nullcontext():
            yield
        self._watch.settle()


def obstacle(model: nn.Module) -> str | None:
    """Return why the functions of a model cannot be watched, or None if they can."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return "the model has scripted modules"
        if is_compiled(module):
            return "the model has compiled modules"
    return None


def is_compiled(module: nn.Module) -> bool:
    """Return whether calls of a module run compiled code, by `torch.compile` or `compile()`."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


class _Unknown(Exception):  # noqa: N818
    """A function whose output cannot be known without running it."""


class _Watch(TorchFunctionMode):
    """A mode that sees every torch function, runs those it must and replays those it can."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__()
        self.safe, self.recording = True, True
        self._warn = warn
        self._calls: dict[Any, Call] = {}
        self._asked: dict[Any, int] = {}
        self._marks: dict[int, tuple[weakref.ref[Tensor], Token | None]] = {}
        self._viewed: set[int] = set()
        self._statistics: dict[int, int] = {}
        self._ghosts: list[weakref.ref[Ghost]] = []

    def __enter__(self) -> _Watch:
        self._asked.clear()
        TorchFunctionMode.__enter__(self)
        return self

    def forget(self) -> None:
        """Release everything that was kept for this batch."""
        for call in self._calls.values():
            call.forget()
        self._calls.clear()
        self._marks.clear()

    def settle(self) -> None:
        """Turn ghosts that were kept into tensors: a cache in a module, an output to inspect."""
        alive = [ghost() for ghost in self._ghosts]
        self._ghosts.clear()
        for ghost in alive:
            if ghost is not None:
                ghost.become_real()

    def give_up(self, reason: str) -> None:
        """Recompute from now on, and warn with the reason."""
        self.safe = False
        self._warn(f"updates_per_batch: frozen layers are recomputed in every update: {reason}")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = bound(func, args, kwargs or {})
        if func in METADATA:
            return func(*args, **kwargs)
        if func in TROUBLE and not args[0].requires_grad and self.safe:
            self.give_up(TROUBLE[func])
        try:
            key = self._key(func, args, kwargs)
        except _Unknown:
            return self._run(func, args, kwargs)
        finally:
            self._note_statistics(func, kwargs)
        call = self._calls.get(key)
        if call is not None and call.can_replay(args, kwargs):
            output = call.replay(args, kwargs)
            ghosts = (t for t in tensors_in(output) if isinstance(t, Ghost))
            self._ghosts += map(weakref.ref, ghosts)
            return output
        if self.recording and call is None:
            return self._record(key, func, args, kwargs)
        return self._run(func, args, kwargs)

    def _key(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what the output depends on, and how often it was needed in this update."""
        if func in OPAQUE or not self.safe:
            raise _Unknown
        if accumulates_statistics(func, kwargs):  # which are written and not read
            kwargs = {**kwargs, "running_mean": None, "running_var": None, "momentum": None}
        key = (func, self._part(args), self._part(kwargs), autocast_state())
        self._asked[key] = asked = self._asked.get(key, 0) + 1
        return (*key, asked)

    def _part(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._identity(value)
        if isinstance(value, PLAIN):
            return type(value), value
        if isinstance(value, list | tuple):
            return type(value), *map(self._part, value)
        if isinstance(value, dict):
            return tuple((name, self._part(item)) for name, item in value.items())
        if isinstance(value, slice):
            return slice, *map(self._part, (value.start, value.stop, value.step))
        raise _Unknown

    def _identity(self, tensor: Tensor) -> Any:
        """Return a known tensor as a key: a token of this batch, or an object with its version."""
        if isinstance(tensor, Ghost):
            if tensor.resolved is not None:
                raise _Unknown
            return tensor.token
        plain = type(tensor) is Tensor or isinstance(tensor, nn.Parameter)
        if tensor.requires_grad or not plain or tensor.is_inference():
            raise _Unknown
        if not self._is_marked(tensor):
            return Tensor, id(tensor), tensor._version, self._statistics.get(id(tensor), 0)
        token = self._token_of(tensor)
        if token is None:
            raise _Unknown
        if token.version != tensor._version:
            self.give_up("a tensor was written to through a view of it")
            raise _Unknown
        return token

    def _record(self, key: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function whose inputs are known, and record how to replay it."""
        inputs = tensors_in((args, kwargs))
        versions = [tensor._version for tensor in inputs]
        call, before = Call(func, args, kwargs, self._token_of), RandomState.now()
        output = func(*args, **kwargs)
        after = RandomState.now()
        written = [t for t, v in zip(inputs, versions, strict=True) if t._version != v]
        is_statistic = accumulates_statistics(func, kwargs)
        self._look_for_trouble(tensors_in(output), written)
        is_own = all(self._token_of(t) is not None for t in written)
        is_answer = is_made_of_tensors(output) or (output is None and bool(written))
        if not (self.safe and is_own and is_answer):
            self._keep([t for t in inputs if not any(t is w for w in written)])
            self._mark_moving(output, inputs, written)
            return output
        random = None if before == after else (before, after)
        for tensor, token in call.note(output, inputs, written, random, is_statistic):
            self._mark(tensor, token)
        if is_statistic:
            self._keep([kwargs["input"]])
        self._viewed.update(id(t._base) for t in tensors_in(output) if t._is_view())
        self._calls[key] = call
        return output

    def _look_for_trouble(self, outputs: list[Tensor], written: list[Tensor]) -> None:
        if any(tensor.requires_grad for tensor in outputs):
            self.give_up("gradients start in a frozen layer")
        if any(tensor.is_inference() for tensor in outputs):
            self.give_up("the closure computes in inference mode")
        for tensor in written:
            shared = tensor._is_view() or id(tensor) in self._viewed
            if shared and self._token_of(tensor) is not None:
                self.give_up("a tensor that has views was written to")

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function. What it consumes is kept, what it returns is new."""
        inputs = tensors_in((args, kwargs))
        if self.recording:
            self._keep(inputs, copy=writes(func))
        values = {id(t): t.value() for t in inputs if isinstance(t, Ghost)}
        if writes(func):
            values = {key: value.clone() for key, value in values.items()}
        given = [values.get(id(t), t) for t in inputs]
        versions = [None if t.is_inference() else t._version for t in given]
        output = func(*real(args, values), **real(kwargs, values))
        written = []
        for tensor, value, version in zip(inputs, given, versions, strict=True):
            if version is not None and value._version != version:
                written.append(tensor)
                if isinstance(tensor, Ghost):
                    tensor.resolved = value
        self._mark_moving(output, inputs, [t for t in written if not isinstance(t, Ghost)])
        return output

    def _note_statistics(self, func: Any, kwargs: Any) -> None:
        """Count writes to running statistics, which leave no trace in their versions."""
        if accumulates_statistics(func, kwargs):
            for statistic in (kwargs["running_mean"], kwargs["running_var"]):
                self._statistics[id(statistic)] = self._statistics.get(id(statistic), 0) + 1

    def _keep(self, tensors: list[Tensor], *, copy: bool = False) -> None:
        for tensor in tensors:
            token = self._token_of(tensor)
            if token is not None:
                token.keep(tensor.detach().clone() if copy else tensor)

    def _mark_moving(self, output: Any, inputs: list[Tensor], written: list[Tensor]) -> None:
        """Mark what depends on layers that move: new outputs, and known tensors written to."""
        given = {id(tensor) for tensor in inputs}
        fresh = [t for t in tensors_in(output) if id(t) not in given and not t.requires_grad]
        for tensor in [*fresh, *(t for t in written if self._is_marked(t))]:
            self._mark(tensor, None)

    def _mark(self, tensor: Tensor, token: Token | None) -> None:
        self._marks[id(tensor)] = (weakref.ref(tensor), token)

    def _is_marked(self, tensor: Tensor) -> bool:
        return id(tensor) in self._marks and self._marks[id(tensor)][0]() is tensor

    def _token_of(self, tensor: Tensor) -> Token | None:
        return self._marks[id(tensor)][1] if self._is_marked(tensor) else None
