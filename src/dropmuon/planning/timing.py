"""The bench: times and counts the steps of one optimizer, cutoff by cutoff."""

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

from dropmuon.optimizer import DropMuon
from dropmuon.planning.bisection import bisected
from dropmuon.planning.problem import Problem, activate
from dropmuon.samplers.base import FloatArray
from dropmuon.theory.costs import StepCosts

__all__ = ["EXTRA_OPERATIONS", "Bench", "Clock", "Timings", "typical"]

Clock = Callable[[], float]
"""What seconds are read from."""

_MOST_ROUNDS = 25
_LEAST_COUNTED = 2
"""So many cutoffs, and updates of layers, are counted in any case."""

_QUICK = 0.1
"""The quantile that stands for a time: delays only add, so a low one has the least noise."""


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
        """Return the typical time of a whole step for each cutoff, NaN where there is none."""
        whole = np.full(num_layers, np.nan)
        for s in self.cutoffs:
            parts = zip(self.forward[s], self.backward[s], self.update[s], strict=True)
            whole[s] = typical([sum(each) for each in parts])
        return whole

    def resampled(self, rounds: int, rng: np.random.Generator) -> Timings:
        """As many rounds, drawn with replacement: what is slow together stays together."""
        drawn = rng.integers(0, rounds, rounds).tolist()

        def taken(part: dict[int, list[float]]) -> dict[int, list[float]]:
            return {k: [times[r % len(times)] for r in drawn] for k, times in part.items()}

        parts = (self.forward, self.backward, self.update, self.alone)
        return Timings(*map(taken, parts))


def typical(times: Sequence[float] | FloatArray) -> float:
    """The time that stands for several measurements of the same."""
    return float(np.quantile(times, _QUICK))


class Bench:
    """One optimizer on one problem, and what was measured of it."""

    def __init__(self, problem: Problem, optimizer: DropMuon, clock: Clock) -> None:
        self._problem, self._optimizer, self._clock = problem, optimizer, clock
        self._b = len(optimizer.layers)
        self._device = next(iter(optimizer.roster.members())).parameter.device
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
        """Count operations: of updates and the forward pass by layer, of both passes by cutoff.

        Layers of equal shapes and norms are counted once.
        """
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
        with FlopCounterMode(display=False) as counter:
            self._forward_operations = self.forward_shares(counter.get_total_flops)
        for s in bisected(self._b):
            if len(self._passes) >= _LEAST_COUNTED and self._clock() > deadline:
                break
            with FlopCounterMode(display=False) as counter:
                self._problem.backward(self._optimizer, tuple(range(s, self._b)), 0)
            self._passes[s] = counter.get_total_flops()

    def operations(self) -> tuple[FloatArray, StepCosts]:
        """Return operations of a step by cutoff, and split into parts that sum to them.

        Cutoffs that there was no time to count are interpolated.
        """
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
        activate(self._optimizer, tuple(range(s, self._b)))
        self._turn += 1
        value: list[torch.Tensor] = []
        turn, timings = self._turn, self.timings
        timings.forward[s].append(self._timed(lambda: value.append(self._problem.value(turn))))
        loss = value.pop()
        can = loss.requires_grad
        timings.backward[s].append(self._timed(loss.backward) if can else 0.0)
        timings.update[s].append(self._timed(self._optimizer.step) if can else 0.0)

    def _kind(self, j: int) -> str:
        members = self._optimizer.roster.layers[j]
        return repr([(tuple(member.parameter.shape), member.norm) for member in members])

    def _updates_alone(self, order: Iterable[int]) -> Iterator[tuple[int, Callable[[], object]]]:
        """The update of each of these layers alone, all from one backward pass."""
        optimizer, roster = self._optimizer, self._optimizer.roster
        self._problem.backward(optimizer, tuple(range(self._b)), self._turn)
        gradients = [[member.parameter.grad for member in layer] for layer in roster.layers]
        for j in order:
            if all(gradient is None for gradient in gradients[j]):
                continue
            activate(optimizer, (j,))
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
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


@contextmanager
def _on_entry(
    optimizer: DropMuon, problem: Problem, enter: Callable[[int], None]
) -> Iterator[None]:
    """Call `enter(layer)` whenever a module that owns parameters of that layer begins."""
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


def _svd_operations(shape: torch.Size, *_: object, **__: object) -> int:
    """A thin singular value decomposition: 14 m n^2 + 8 n^3 (Golub and Van Loan, 8.6)."""
    *batch, rows, columns = shape
    m, n = max(rows, columns), min(rows, columns)
    return math.prod(batch) * (14 * m * n * n + 8 * n**3)


EXTRA_OPERATIONS = {torch.ops.aten._linalg_svd: _svd_operations}
