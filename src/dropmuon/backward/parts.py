"""One batch, several active sets: the parts of a step.

A step's batch is cut into parts, each with an active set of its own. A layer's gradient is the mean
over the parts in which it was active, so it is computed from the share of the examples that the
sampler gives it, and every layer that was active in any part moves.

A backward ends a part. Hooks on the parameters detect it, and queue a callback of the autograd
engine. The callback runs when the whole backward is over, so activation checkpointing recomputes
every forward with the flags that it had, and the next forward sees those of the next part. Hooks
and callback run outside of compiled graphs, and before DDP and gradient scalers read a gradient.
Gradients are scaled in the backward, so that clipping sees the gradient that will be followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dropmuon.backward.batches import cut
from dropmuon.backward.gathered import Place, watch_gathered
from dropmuon.backward.noise import Arrival, NoiseMeter
from dropmuon.samplers import ActiveSet, Adaptive, Sampler

__all__ = ["InParts", "Parts", "call_if_alive", "check_parts"]


def check_parts(parts: int, updates_per_batch: int, sampler: Sampler) -> None:
    """Raise ValueError for settings that go only with several parts, or only with one."""
    if parts > 1 and updates_per_batch > 1:
        raise ValueError(
            f"parts={parts} and updates_per_batch={updates_per_batch} cannot be combined: one is "
            "for batches larger than needed, the other for smaller; leave one of them at 1"
        )
    if parts == 1 and isinstance(sampler, Adaptive):
        raise ValueError(
            "parts=1 leaves sampler='adaptive' no way to measure noise, which takes several parts "
            "of a batch; give parts=8, or another sampler"
        )


class Parts:
    """The parts of the present step: their sets, and what has been accumulated so far.

    Let part p have weight w_p, and W be the sum over all parts. A loop that accumulates gradients
    multiplies the loss of part p by w_p / W. Here layer i is multiplied by W over the sum of the
    weights of the parts in which it is active, which makes its gradient the mean over those parts.
    With `scales_loss`, the factor w_p / W is also applied here.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sets: tuple[ActiveSet, ...] = ()
        self._on_end: Callable[[], None] = _nothing
        self._handles: list[Any] = []
        self._gathered: set[Tensor] = set()
        self._task = -1
        self._is_open = self._came = False
        self.meter: NoiseMeter | None = None
        self.arrived: set[int] = set()
        self.clear()

    # The course of a step

    def begin(self, sets: Sequence[ActiveSet], *, measured: bool = False) -> None:
        """Start a step with these sets, one per part; `measured` meters the noise in it."""
        self.sets = tuple(sets)
        self.meter = NoiseMeter() if measured else None
        self.clear()

    def clear(self) -> None:
        """Discard what was accumulated: the step restarts from its first part."""
        self.meter = None if self.meter is None else NoiseMeter()
        self.weigh((1.0,) * self.count, scales_loss=False)
        self._done: list[tuple[ActiveSet, float]] = []
        self._scaled: set[Tensor] = set()
        self.arrived.clear()

    def replace(self, sets: Iterable[ActiveSet]) -> None:
        """Change the sets of this step, and keep what was accumulated."""
        self.sets = tuple(sets)

    def weigh(self, weights: Sequence[float], *, scales_loss: bool) -> None:
        """Give the parts of this step weights."""
        self._weights, self._scales_loss = tuple(weights), scales_loss

    @property
    def current(self) -> ActiveSet:
        """The set of the next part. After the last part, the sets repeat."""
        return self.sets[len(self._done) % self.count]

    @property
    def done(self) -> int:
        """How many parts have been accumulated."""
        return len(self._done)

    @property
    def passed(self) -> tuple[ActiveSet, ...]:
        """The active sets of the parts so far."""
        return tuple(active for active, _ in self._done)

    @property
    def planned(self) -> ActiveSet:
        """The layers that are active in any part of this step."""
        return tuple(sorted({layer for active in self.sets for layer in active}))

    @property
    def reached(self) -> ActiveSet:
        """The layers that were active in any part so far, or will be if no backward was noticed.

        Gradients may be there without one: set by hand, or by an engine of its own.
        """
        if not self._done:
            return self.planned
        return tuple(sorted({layer for active, _ in self._done for layer in active}))

    def share(self, layer: int) -> float:
        """Return the share of the parts in which a layer is active."""
        return sum(layer in active for active in self.sets) / self.count

    def finish(self, active: ActiveSet) -> None:
        """End a part, in which these layers were active."""
        self._done.append((active, self._weights[len(self._done) % self.count]))
        self.arrived.clear()

    # What a gradient is multiplied by
    #
    # With equal weights, all parts of a layer have the same factor: it is applied once, in place,
    # when the last of them has arrived. Anything else is multiplied as it arrives, which copies it;
    # so are gradients of gathered parameters, of which some may have been reduced already.

    def factor(self, layer: int) -> float:
        """Return what the gradient of a layer in the current part is multiplied by, as planned."""
        factor = self._common(zip(self.sets, self._weights, strict=True), layer)
        return factor * self._weight if self._scales_loss else factor

    def factor_on_arrival(self, parameter: Tensor, layer: int) -> float:
        """Return what an arriving gradient is multiplied by before it is accumulated."""
        return self.factor(layer) if self._scales_on_arrival(parameter) else 1.0

    def _scales_on_arrival(self, parameter: Tensor) -> bool:
        return self._varies or parameter in self._scaled or parameter in self._gathered

    def measure(self, parameter: Tensor, layer: int, gradient: Tensor) -> None:
        """Meter an arriving gradient, where this step is measured."""
        if self.meter is None or len(self._done) >= self.count:
            return
        share = self._weight / sum(self._weights)
        own = 1.0 if self._scales_loss else share
        kept = own * self.factor_on_arrival(parameter, layer)
        self.meter.add(parameter, layer, gradient, len(self._done), Arrival(own, kept, share))

    def scale_in_place(self, parameter: Tensor, layer: int) -> None:
        """Multiply an accumulated gradient, if the last planned part of its layer has arrived."""
        later = self.sets[len(self._done) % self.count + 1 :]
        if self._scales_on_arrival(parameter) or any(layer in each for each in later):
            return
        self._scaled.add(parameter)
        _multiply(parameter, self.factor(layer))

    def correct(self, members: Iterable[tuple[Tensor, int]]) -> None:
        """Scale gradients if the parts differ from those planned, in kind or in number."""
        if not self._done:
            return
        is_whole = self._scales_loss and len(self._done) % self.count == 0
        for parameter, layer in members:
            planned = self._common(zip(self.sets, self._weights, strict=True), layer)
            actual = planned if is_whole else self._common(self._done, layer)
            if not self._scales_on_arrival(parameter):
                planned = 1.0 / self._weights[0] if self._scales_loss else 1.0
            _multiply(parameter, actual / planned)

    @property
    def _weight(self) -> float:
        return self._weights[len(self._done) % self.count]

    @property
    def _varies(self) -> bool:
        return any(weight != self._weights[0] for weight in self._weights)

    def _common(self, parts: Iterable[tuple[ActiveSet, float]], layer: int) -> float:
        """Return the factor of a layer that all parts have in common.

        That is W over the weight of the parts in which it is active, and 1 / W where the losses
        are scaled here; a part's own weight comes on top of that.
        """
        weights = [(weight, layer in active) for active, weight in parts]
        total = sum(weight for weight, _ in weights)
        own = sum(weight for weight, inside in weights if inside) or total
        return 1.0 / own if self._scales_loss else total / own

    # The end of a backward

    def watch(
        self,
        members: Iterable[tuple[Tensor, int]],
        on_end: Callable[[], None],
        model: nn.Module | None = None,
        places: Iterable[Place] = (),
    ) -> None:
        """Scale the gradients of parameters, given with their layers, and detect ends of parts.

        `places` says where in the model parameters are: FSDP2 gathers other tensors for them.
        """
        self.unwatch()
        self._on_end, layers = on_end, dict(members)
        if model is not None:
            watch = weakref.WeakMethod(self._watch)
            handles, self._gathered = watch_gathered(
                model, places, lambda own, leaf: call_if_alive(watch, own, leaf, layers[own])
            )
            self._handles += handles
        for parameter, layer in layers.items():
            if parameter not in self._gathered:
                self._watch(parameter, parameter, layer)

    def _watch(self, parameter: Tensor, leaf: Tensor, layer: int) -> None:
        """Watch the tensor at which the gradient of a parameter arrives: mostly itself."""
        me, wanted = weakref.ref(self), leaf.requires_grad
        leaf.requires_grad_(True)  # the only way to register hooks, which stay
        self._handles.append(leaf.register_hook(_scaling(me, parameter, leaf, layer)))
        notice = _noticing(me, parameter, layer)
        self._handles.append(leaf.register_post_accumulate_grad_hook(notice))
        leaf.requires_grad_(wanted)

    def unwatch(self) -> None:
        """Leave gradients alone, and detect nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._gathered = [], set()

    def notice(self, layer: int) -> None:
        """Request a callback at the end of a backward, on its first gradient."""
        self._came = True
        self.arrived.add(layer)
        task = torch._C._current_graph_task_id()
        if task != self._task and not self._is_open:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._on_end)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make all backwards inside the block one part."""
        self._is_open, self._came = True, False
        try:
            yield
            self._came = True
        finally:  # a loop may also be left in the middle, after a backward
            self._is_open = False
            if self._came:
                self._on_end()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hooks: a copy must watch its own parameters."""
        fresh = {"_on_end": _nothing, "_handles": [], "_is_open": False, "_gathered": set()}
        meter = None if self.meter is None else NoiseMeter()
        return {**self.__dict__, **fresh, "meter": meter}


class InParts(Optimizer):
    """The user interface of an optimizer whose steps have parts."""

    _parts: Parts
    _ddp: Iterable[nn.parallel.DistributedDataParallel] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        raise NotImplementedError

    def _freeze(self) -> None:
        """Apply the active set of the next part."""
        raise NotImplementedError

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Let ranks keep their gradients to themselves inside the block, so far as it is DDP."""
        with ExitStack() as stack:
            for ddp in self._ddp:
                stack.enter_context(ddp.no_sync())
            yield

    @property
    def parts(self) -> int:
        """The number of parts that the batch of a step is cut into."""
        return self._parts.count

    @property
    def active_sets(self) -> tuple[ActiveSet, ...]:
        """The active set of each part of this step, as indices of layers, in order."""
        return self._parts.sets

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of this step's parts in which each layer is active."""
        return tuple(map(self._parts.share, range(len(self.layers))))

    def split(self, *batch: Any) -> Iterator[Any]:
        """Cut a batch into the parts of a step: `for x, y in optimizer.split(x, y): ...`.

        Tensors, and mappings, lists and tuples of them, are cut along their first axis. Call
        backward on the mean loss of each part, not divided: parts are weighted by their numbers of
        examples, so that the gradient is the mean over the examples of the whole batch. DDP
        averages gradients in the last part only.
        """
        pieces, sizes = cut(batch, self.parts)
        self._parts.weigh(sizes, scales_loss=True)
        for number, piece in enumerate(pieces, 1):
            with self._apart() if number < len(pieces) else nullcontext(), self.part():
                yield piece if len(batch) > 1 else piece[0]

    def weigh(self, weights: Sequence[float]) -> None:
        """Give the parts of this step weights, such as their numbers of examples or of tokens.

        For a loop that accumulates gradients over unequal parts and multiplies the loss of each by
        its weight over the sum of weights. Call it before the first backward of a step.
        """
        if len(weights) != self.parts or not all(weight > 0 for weight in weights):
            raise ValueError(
                f"weights must be {self.parts} positive numbers, one per part, got {list(weights)}"
            )
        self._parts.weigh([float(weight) for weight in weights], scales_loss=False)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Make all backwards inside the block one part, where a part has several losses."""
        with self._parts.open() if self.parts > 1 else nullcontext():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; a step that has begun restarts from its first part."""
        super().zero_grad(set_to_none)
        if self._parts.done:
            self._parts.clear()
            self._freeze()


def call_if_alive(method: weakref.WeakMethod[Callable[..., None]], *args: Any) -> None:
    """Call a method, unless what it belongs to is gone."""
    alive = method()
    if alive is not None:
        alive(*args)


def _nothing() -> None:
    """Do nothing at the end of a part."""


def _multiply(parameter: Tensor, factor: float) -> None:
    """Multiply the gradient of a parameter in place."""
    if factor != 1.0 and parameter.grad is not None:
        with torch.no_grad():
            parameter.grad.mul_(factor)


def _scaling(
    parts: weakref.ref[Parts], parameter: Tensor, leaf: Tensor, layer: int
) -> Callable[[Tensor], Tensor | None]:
    owner, at = weakref.ref(parameter), weakref.ref(leaf)

    def scale(gradient: Tensor) -> Tensor | None:
        alive, own, here = parts(), owner(), at()
        if alive is None or own is None or here is None:
            return None
        if alive.meter is not None and _is_accumulated(here):
            alive.measure(own, layer, gradient)
        factor = alive.factor_on_arrival(own, layer)
        return gradient * factor if factor != 1.0 and _is_accumulated(here) else None

    return scale


def _is_accumulated(parameter: Tensor) -> bool:
    """Return whether a backward is running, and not `torch.autograd.grad`, which returns."""
    node = torch.autograd.graph.get_gradient_edge(parameter).node
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # of torch.autograd.grad, which accumulates nothing
        return False


def _noticing(parts: weakref.ref[Parts], parameter: Tensor, layer: int) -> Callable[[Tensor], None]:
    owner = weakref.ref(parameter)

    def notice(_: Tensor) -> None:
        alive, own = parts(), owner()
        if alive is not None and own is not None:
            alive.scale_in_place(own, layer)
            alive.notice(layer)

    return notice
