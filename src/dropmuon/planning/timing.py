"""The steps of one optimizer, timed and counted cutoff by cutoff."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from dropmuon.model.work import EXTRA_OPERATIONS
from dropmuon.optimizer import DropMuon
from dropmuon.planning.problem import Problem
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import StepCosts

__all__ = [
    "Clock",
    "StepTimer",
    "Timings",
    "bisected",
    "check_budget",
    "synchronize",
    "typical",
]

Clock = Callable[[], float]
"""A function that returns the time in seconds."""

_MOST_ROUNDS = 25
_LEAST_COUNTED = 2
"""The number of cutoffs, and of updates of layers, that are counted whatever the budget."""

_QUICK = 0.1
"""The quantile used as the typical time: delays only add, so a low one has the least noise."""


@dataclass(eq=False)
class Timings:
    """Seconds of forward, backward and update per cutoff, and of the update of a layer alone."""

    forward: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    backward: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    update: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    alone: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def cutoffs(self) -> list[int]:
        """The cutoffs that were measured at least once, ascending."""
        return sorted(self.update)

    def steps(self, num_layers: int) -> FloatArray:
        """Return the typical time of a whole step for each cutoff, NaN where not measured."""
        whole = np.full(num_layers, np.nan)
        for s in self.cutoffs:
            parts = zip(self.forward[s], self.backward[s], self.update[s], strict=True)
            whole[s] = typical([sum(each) for each in parts])
        return whole

    def resampled(self, rounds: int, rng: np.random.Generator) -> Timings:
        """Return as many rounds, drawn with replacement; times of one round stay together."""
        drawn = rng.integers(0, rounds, rounds).tolist()

        def taken(part: dict[int, list[float]]) -> dict[int, list[float]]:
            return {k: [times[r % len(times)] for r in drawn] for k, times in part.items()}

        parts = (self.forward, self.backward, self.update, self.alone)
        return Timings(*map(taken, parts))


def typical(times: Sequence[float] | FloatArray) -> float:
    """Return the typical time of repeated measurements."""
    return float(np.quantile(times, _QUICK))


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done its work, so that a clock can be read."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def check_budget(budget: float) -> None:
    """Raise ValueError unless the budget is a positive, finite number of seconds."""
    if not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise ValueError(f"budget must be positive, in seconds, got {budget!r}; give 60.0")


def bisected(count: int) -> list[int]:
    """Return 0, ..., count-1 with the ends first, then the middles of the gaps between.

    A time budget may cut this order short: any beginning of it is spread evenly.
    """
    found = list(dict.fromkeys([0, count - 1]))
    gaps = [(0, count - 1)]
    for low, high in gaps:
        middle = (low + high) // 2
        if low < middle < high:
            found.append(middle)
            gaps += [(low, middle), (middle, high)]
    return found


class StepTimer:
    """A timer of the steps of one optimizer on one problem, which keeps the measurements."""

    def __init__(self, problem: Problem, optimizer: DropMuon, clock: Clock) -> None:
        self._problem, self._optimizer, self._clock = problem, optimizer, clock
        self._b = len(optimizer.layers)
        self._device = next(iter(optimizer.roster.members())).parameter.device
        self._batch = 0
        self._passes: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._forward_operations: FloatArray = np.zeros(self._b)
        self._sharp_operations: FloatArray = np.zeros(self._b)
        self.timings = Timings()

    def warm_up(self) -> None:
        """Take two full steps, so that state exists, caches are warm and kernels are chosen."""
        for index in range(2):
            self._problem.backward(self._optimizer, tuple(range(self._b)), index)
            self._optimizer.step()

    def count(self, deadline: float) -> None:
        """Count operations: of updates and the forward pass by layer, of both passes by cutoff.

        A layer's weight gradient is what the passes save where it alone is left out, the cutoff
        being the layer before it. Layers of equal shapes and norms have one count of updates.
        """
        self._count_updates(deadline)
        with FlopCounterMode(display=False) as counter:
            self._forward_operations = self.forward_shares(counter.get_total_flops)
        for s in bisected(self._b):
            if len(self._passes) >= _LEAST_COUNTED and self._clock() > deadline:
                break
            self._passes[s] = self._counted(range(s, self._b))
        for s in bisected(self._b):
            if s in self._passes and s + 1 < self._b and self._clock() <= deadline:
                rest = (s, *range(s + 2, self._b))
                self._weights[s + 1] = self._passes[s] - self._counted(rest)

    def _counted(self, active: Iterable[int]) -> int:
        with FlopCounterMode(display=False) as counter:
            self._problem.backward(self._optimizer, tuple(active), 0)
        return int(counter.get_total_flops())

    def _count_updates(self, deadline: float) -> None:
        kinds: dict[str, int] = {}
        for j, update in self._updates_alone(bisected(self._b)):
            kind = self._kind(j)
            if kind not in kinds:
                if len(kinds) >= _LEAST_COUNTED and self._clock() > deadline:
                    continue
                with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
                    update()
                kinds[kind] = counter.get_total_flops()
            self._sharp_operations[j] = kinds[kind]

    def operations(self) -> tuple[FloatArray, StepCosts]:
        """Return the operations of a step by cutoff, and the parts per layer that add up to them.

        Cutoffs that were not counted for lack of time are interpolated. A weight gradient that was
        not counted takes as many operations as the forward pass, as it does for a matrix. That of
        the first layer stays in `backward`: it is active wherever backward reaches it.
        """
        known = sorted(self._passes)
        counted = np.interp(np.arange(self._b), known, [self._passes[s] for s in known])
        forward = self._forward_operations
        backward = np.maximum(counted - np.append(counted[1:], forward.sum()), 0.0)
        weight = np.array([self._weights.get(i, forward[i]) for i in range(self._b)])
        weight = np.clip(weight, 0.0, backward)
        weight[0] = 0.0
        sharp = self._sharp_operations
        parts = StepCosts(0.0, forward, backward - weight, sharp, weight=weight)
        return counted + sharp[::-1].cumsum()[::-1], parts

    def forward_shares(self, read: Clock) -> FloatArray:
        """Split what `read` counts in a forward pass: each share to the layer entered last."""
        self._activate(range(self._b))
        spent, current, since = np.zeros(self._b), 0, 0.0

        def enter(layer: int) -> None:
            nonlocal current, since
            self._synchronize()
            now = float(read())
            spent[current] += now - since
            current, since = layer, now

        self._synchronize()
        with _on_entry(self._optimizer, self._problem, enter):
            since = float(read())
            self._problem.value(0)
            enter(current)
        return np.maximum(spent, 0.0)

    def time(
        self, start: float, budget: float, rng: np.random.Generator, tell: Callable[[float], None]
    ) -> int:
        """Time all cutoffs in rounds until the budget is spent; return how many rounds are full."""
        for done in range(_MOST_ROUNDS):
            order = bisected(self._b) if done == 0 else rng.permutation(self._b).tolist()
            for n, s in enumerate(order):
                spent = (self._clock() - start) / budget
                if spent >= 1.0 and len(self.timings.cutoffs) >= min(2, self._b):
                    return done
                tell(min(1.0, max(spent, (done + n / self._b) / _MOST_ROUNDS)))
                self._time_step(s)
            for j, update in self._updates_alone(range(self._b)):
                if (self._clock() - start) >= budget:
                    break
                self.timings.alone[j].append(self._timed(update))
        return _MOST_ROUNDS

    def _time_step(self, s: int) -> None:
        self._activate(range(s, self._b))
        self._batch += 1
        value: list[torch.Tensor] = []
        batch, timings = self._batch, self.timings
        timings.forward[s].append(self._timed(lambda: value.append(self._problem.value(batch))))
        loss = value.pop()
        has_gradient = loss.requires_grad
        timings.backward[s].append(self._timed(loss.backward) if has_gradient else 0.0)
        timings.update[s].append(self._timed(self._optimizer.step) if has_gradient else 0.0)

    def _activate(self, layers: Iterable[int]) -> None:
        self._optimizer.zero_grad()
        self._optimizer.activate(layers)

    def _kind(self, j: int) -> str:
        members = self._optimizer.roster.layers[j]
        return repr([(tuple(member.parameter.shape), member.norm) for member in members])

    def _updates_alone(self, order: Iterable[int]) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yield layers with a function that updates only that layer, all from one backward."""
        optimizer, roster = self._optimizer, self._optimizer.roster
        self._problem.backward(optimizer, tuple(range(self._b)), self._batch)
        gradients = [[member.parameter.grad for member in layer] for layer in roster.layers]
        for j in order:
            if all(gradient is None for gradient in gradients[j]):
                continue
            self._activate((j,))
            for member, gradient in zip(roster.layers[j], gradients[j], strict=True):
                member.parameter.grad = None if gradient is None else gradient.detach()
            yield j, optimizer.step

    def _timed(self, run: Callable[[], object]) -> float:
        self._synchronize()
        start = self._clock()
        run()
        self._synchronize()
        return max(0.0, self._clock() - start)

    def _synchronize(self) -> None:
        synchronize(self._device)


@contextmanager
def _on_entry(
    optimizer: DropMuon, problem: Problem, enter: Callable[[int], None]
) -> Iterator[None]:
    """Call `enter(layer)` whenever the forward of a module with parameters of that layer begins."""
    layer_of = {
        member.parameter: index
        for index, layer in enumerate(optimizer.roster.layers)
        for member in layer
    }

    def hook(layer: int, *_: object) -> None:
        enter(layer)

    handles = []
    for module in problem.model.modules():
        owned = [layer_of[p] for p in module.parameters(recurse=False) if p in layer_of]
        if owned:
            handles.append(module.register_forward_pre_hook(partial(hook, min(owned))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
