"""The bench: times and counts the steps of one optimizer, cutoff by cutoff."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from dropmuon.optimizer import DropMuon
from dropmuon.planning.problem import Problem, activate
from dropmuon.theory.costs import StepCosts
from dropmuon.theory.distributions import FloatArray

__all__ = ["EXTRA_OPERATIONS", "Bench", "Clock", "Timings"]

Clock = Callable[[], float]
"""What seconds are read from."""

_MOST_ROUNDS = 25
_LEAST_COUNTED = 8
"""So many cutoffs are counted in any case."""


@dataclass(eq=False)
class Timings:
    """Seconds measured: per cutoff forward, backward and update, and per layer its update alone."""

    forward: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    backward: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    update: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    alone: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def cutoffs(self) -> list[int]:
        """The cutoffs that were measured at least once, ascending."""
        return sorted(self.update)

    def steps(self, num_layers: int) -> FloatArray:
        """Return the median of a whole step for each cutoff, NaN where there is none."""
        whole = np.full(num_layers, np.nan)
        for s in self.cutoffs:
            parts = zip(self.forward[s], self.backward[s], self.update[s], strict=True)
            whole[s] = np.median([sum(each) for each in parts])
        return whole


class Bench:
    """One optimizer on one problem, and what was measured of it."""

    def __init__(self, problem: Problem, optimizer: DropMuon, clock: Clock) -> None:
        self._problem, self._optimizer, self._clock = problem, optimizer, clock
        self._b = len(optimizer.layers)
        self._device = next(iter(optimizer._roster.slots())).parameter.device
        self._turn = 0
        self._passes: dict[int, int] = {}
        self._forward_operations: FloatArray = np.zeros(self._b)
        self._sharp_operations: FloatArray = np.zeros(self._b)
        self.timings = Timings()

    def warm_up(self) -> None:
        """Take two full steps: state exists, caches are warm, kernels are chosen."""
        for index in range(2):
            self._problem.backward(self._optimizer, tuple(range(self._b)), index)
            self._optimizer.step()

    def count(self, deadline: float) -> None:
        """Count operations: of both passes by cutoff, of the forward pass and updates by layer."""
        for s in _bisected(self._b):
            if len(self._passes) >= _LEAST_COUNTED and self._clock() > deadline:
                break
            with FlopCounterMode(display=False) as counter:
                self._problem.backward(self._optimizer, tuple(range(s, self._b)), 0)
            self._passes[s] = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            self._forward_operations = self.forward_shares(counter.get_total_flops)
        for j, update in self._updates_alone():
            with FlopCounterMode(display=False, custom_mapping=EXTRA_OPERATIONS) as counter:
                update()
            self._sharp_operations[j] = counter.get_total_flops()

    def operations(self) -> tuple[FloatArray, StepCosts]:
        """Return operations of a step by cutoff, and split into parts that sum to them."""
        known = sorted(self._passes)
        counted = np.interp(np.arange(self._b), known, [self._passes[s] for s in known])
        forward = self._forward_operations
        backward = counted - np.append(counted[1:], forward.sum())
        sharp = self._sharp_operations
        parts = StepCosts(0.0, forward, np.maximum(backward, 0.0), sharp)
        return counted + sharp[::-1].cumsum()[::-1], parts

    def forward_shares(self, read: Clock) -> FloatArray:
        """Split what `read` counts in a forward pass: each share to the layer entered last."""
        activate(self._optimizer, tuple(range(self._b)))
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
        """Time all cutoffs, round after round, until the budget is over; return whole rounds."""
        for done in range(_MOST_ROUNDS):
            order = _bisected(self._b) if done == 0 else rng.permutation(self._b).tolist()
            for n, s in enumerate(order):
                spent = (self._clock() - start) / budget
                if spent >= 1.0 and len(self.timings.cutoffs) >= min(2, self._b):
                    return done
                tell(min(1.0, max(spent, (done + n / self._b) / _MOST_ROUNDS)))
                self._time_step(s)
            for j, update in self._updates_alone():
                if (self._clock() - start) >= budget:
                    break
                self.timings.alone[j].append(self._timed(update))
        return _MOST_ROUNDS

    def _time_step(self, s: int) -> None:
        activate(self._optimizer, tuple(range(s, self._b)))
        self._turn += 1
        value: list[torch.Tensor] = []
        turn, timings = self._turn, self.timings
        timings.forward[s].append(self._timed(lambda: value.append(self._problem.value(turn))))
        loss = value.pop()
        can = loss.requires_grad
        timings.backward[s].append(self._timed(loss.backward) if can else 0.0)
        timings.update[s].append(self._timed(self._optimizer.step) if can else 0.0)

    def _updates_alone(self) -> Iterator[tuple[int, Callable[[], object]]]:
        """The update of each layer alone, all from one backward pass."""
        optimizer, roster = self._optimizer, self._optimizer._roster
        self._problem.backward(optimizer, tuple(range(self._b)), self._turn)
        gradients = [[slot.parameter.grad for slot in layer] for layer in roster.layers]
        for j, layer in enumerate(roster.layers):
            if all(gradient is None for gradient in gradients[j]):
                continue
            activate(optimizer, (j,))
            for slot, gradient in zip(layer, gradients[j], strict=True):
                slot.parameter.grad = None if gradient is None else gradient.detach()
            yield j, optimizer.step

    def _timed(self, run: Callable[[], object]) -> float:
        self._synchronize()
        start = self._clock()
        run()
        self._synchronize()
        return max(0.0, self._clock() - start)

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


@contextmanager
def _on_entry(
    optimizer: DropMuon, problem: Problem, enter: Callable[[int], None]
) -> Iterator[None]:
    """Call `enter(layer)` whenever a module that owns parameters of that layer begins."""
    layer_of = {
        slot.parameter: index
        for index, layer in enumerate(optimizer._roster.layers)
        for slot in layer
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


def _bisected(count: int) -> list[int]:
    """All of 0, ..., count-1: the ends first, then the middles of what lies between."""
    found = list(dict.fromkeys([0, count - 1]))
    gaps = [(0, count - 1)]
    for low, high in gaps:
        middle = (low + high) // 2
        if low < middle < high:
            found.append(middle)
            gaps += [(low, middle), (middle, high)]
    return found


def _svd_operations(shape: torch.Size, *_: object, **__: object) -> int:
    """A thin singular value decomposition: 14 m n^2 + 8 n^3 (Golub and Van Loan, 8.6)."""
    *batch, rows, columns = shape
    m, n = max(rows, columns), min(rows, columns)
    return math.prod(batch) * (14 * m * n * n + 8 * n**3)


EXTRA_OPERATIONS = {torch.ops.aten._linalg_svd: _svd_operations}
