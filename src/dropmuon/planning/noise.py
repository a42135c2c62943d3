r"""The noise of each layer's gradient, relative to its signal, along a short run.

Every batch of the run is cut into m pieces. Let g_p be a layer's gradient over piece p. On average

.. math::
    \langle g_p, g_q \rangle = |\nabla_i f|^2 = S, \qquad |g_p|^2 = S + m N,

where N is the variance of the gradient over the whole batch: the mean over pairs p != q is the
signal, the rest of the mean square is noise. All layers move by the mean of the pieces, so that the
measurement costs no pass of its own. nu_i = N / S is the noise-to-signal ratio, and n nu_i examples
are the batch at which noise equals signal: the layer's critical batch size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropmuon.backward.batches import cut
from dropmuon.norms.numerics import inner
from dropmuon.optimizer import DropMuon
from dropmuon.planning.problem import Problem
from dropmuon.planning.timing import Clock, check_budget, synchronize, typical
from dropmuon.samplers.base import FloatArray

__all__ = ["LEAST_STEPS", "NoiseEstimate", "measure_noise"]

LEAST_STEPS = 6
"""With fewer steps, of three windows, neither the trend of the noise nor its error is known."""

_PIECES = 4

_MOST_STEPS = 512

_MOST_PASSES = 4
"""How often a run may see the same batch: later, noise is that of memorised examples."""

_WINDOWS = 8
"""The number of windows that a run is divided into; a window has at least two steps."""

_RANGE = (1e-4, 1e2)
"""What a ratio is confined to: beyond, it makes no difference, and logarithms need a limit."""

_STEEPEST = 2.0
"""The largest exponent of steps with which noise is assumed to grow; the least is 0."""

_LATER = 12
"""The number of points at which noise beyond the measured run is extrapolated."""


@dataclass(frozen=True, eq=False)
class NoiseEstimate:
    """Signal and noise of every layer's gradient, at each step of a short run.

    Attributes:
        layers: names, in order.
        examples: the number of examples of a batch.
        signal: (steps, layers): estimates of the squared norm of the true gradient. They may be
            negative where noise is large.
        noise: (steps, layers): estimates of the variance of the gradient over the whole batch.
        pieces: the number of pieces that batches were cut into.
        seconds: the typical time of both passes of a whole batch, piece by piece.
    """

    layers: tuple[str, ...]
    examples: int
    signal: FloatArray
    noise: FloatArray
    pieces: int
    seconds: float

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return len(self.signal)

    @property
    def known(self) -> bool:
        """Whether the run was long enough for a trend."""
        return self.steps >= LEAST_STEPS

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """The first step of each window of the run, and the first after it."""
        count = max(1, min(_WINDOWS, self.steps // 2))
        edges = [self.steps * k // count for k in range(count + 1)]
        return list(pairwise(edges))

    @cached_property
    def ratios(self) -> FloatArray:
        """nu_i in each window, (windows, layers)."""
        found: FloatArray = self.resampled(0)[0]
        return found

    def resampled(self, resamples: int, seed: int = 0) -> FloatArray:
        """Return (1 + resamples, windows, layers): `ratios`, and those of resampled steps."""
        rng = np.random.default_rng(seed)
        found = []
        for start, end in self.windows:
            size = end - start
            drawn = rng.multinomial(size, np.full(size, 1.0 / size), size=resamples)
            counts = np.concatenate([np.ones((1, size), dtype=np.int64), drawn])
            found.append(_ratio(counts @ self.signal[start:end], counts @ self.noise[start:end]))
        return np.stack(found, axis=1)

    def stages(self, ratios: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
        """Return nu (..., stages, layers) along a run of `steps`, and each stage's share of it.

        Up to the end of the measured run these are `ratios`, its windows. Beyond, noise goes on
        to grow with a power of the number of steps, which is fitted to all layers together.
        """
        lengths = [max(0, min(end, steps) - start) for start, end in self.windows]
        if steps <= self.steps:
            return ratios, np.array(lengths) / steps
        middles = np.array([(start + end) / 2 for start, end in self.windows])
        edges = np.geomspace(self.steps, steps, _LATER + 1)
        later = np.sqrt(edges[1:] * edges[:-1])
        growth = (later / middles[-1]) ** _slope(np.log(middles), ratios)[..., None]
        beyond = np.clip(ratios[..., -1:, :] * growth[..., None], *_RANGE)
        weights = np.array([*lengths, *np.diff(edges)]) / steps
        return np.concatenate([ratios, beyond], axis=-2), weights

    def over(self, steps: int, factor: float = 1.0, ratios: FloatArray | None = None) -> FloatArray:
        """Return one ratio per layer that stands for a run of this many steps.

        Where steps needed grow as 1 + nu/q, a stage that takes a share w of the steps of full
        updates takes w (1 + nu/q) / (1 + nu) of them with a share q of the batch. The sum over
        stages has the same form, with 1 / (1 + nu) the mean of that over stages. `factor`
        multiplies the ratio of every stage.
        """
        nu, weights = self.stages(self.ratios if ratios is None else ratios, steps)
        kept = np.einsum("j,...ji->...i", weights, 1.0 / (1.0 + factor * nu))
        found: FloatArray = 1.0 / kept - 1.0
        return found


def measure_noise(
    problem: Problem,
    optimizer_settings: Mapping[str, Any],
    steps: int | None = None,
    budget: float = 20.0,
    on_progress: Callable[[float], None] | None = None,
    *,
    clock: Clock = time.perf_counter,
) -> NoiseEstimate | None:
    """Measure signal and noise along a run of full updates; None if batches cannot be cut.

    Args:
        problem: the model, its loss and batches; they are left as they were.
        optimizer_settings: arguments of `DropMuon` after the model.
        steps: the largest number of steps to take. A run has 512 at most, and sees every batch
            four times at most.
        budget: approximate time to spend, in seconds.
        on_progress: called with the share done, from 0 to 1.
        clock: a function that returns the time in seconds.
    """
    check_budget(budget)
    try:
        sizes = cut(problem.batch(0), _PIECES)[1]
    except ValueError:
        return None
    tell = on_progress or (lambda share: None)
    start = clock()
    most = min(steps or _MOST_STEPS, _MOST_STEPS, _MOST_PASSES * len(problem.batches))
    sums: list[FloatArray] = []
    seconds: list[float] = []
    with problem.prepared(optimizer_settings) as optimizer:
        layers = optimizer.layers
        while len(sums) < most and (not sums or clock() - start < budget):
            tell(max(len(sums) / most, min(1.0, (clock() - start) / budget)))
            step = _PieceByPiece(problem, optimizer, len(sums), clock)
            for piece in cut(problem.batch(len(sums)), _PIECES)[0]:
                step.add(piece)
            sums.append(step.signal_and_noise())
            seconds.append(step.seconds)
            step.finish()
    tell(1.0)
    found = np.stack(sums)
    return NoiseEstimate(layers, sum(sizes), found[:, 0], found[:, 1], _PIECES, typical(seconds))


class _PieceByPiece:
    """One step of the run: the gradient of each piece, and the sums that noise follows from."""

    def __init__(self, problem: Problem, optimizer: DropMuon, index: int, clock: Clock) -> None:
        self._problem, self._optimizer, self._index, self._clock = problem, optimizer, index, clock
        self._layers = optimizer.roster.layers
        self._device = next(iter(optimizer.roster.members())).parameter.device
        self._sum: dict[Tensor, Tensor] = {}
        self._squares = np.zeros(len(self._layers))
        self._pieces = 0
        self.seconds = 0.0

    def add(self, piece: Any) -> None:
        """Compute the gradients of a piece."""
        self._optimizer.zero_grad()
        self._optimizer.activate(range(len(self._layers)))
        synchronize(self._device)
        start = self._clock()
        with torch.enable_grad():
            loss = self._problem.loss(self._problem.model, piece)
        loss.backward()
        synchronize(self._device)
        self.seconds += max(0.0, self._clock() - start)
        self._pieces += 1
        parameters = [member.parameter for layer in self._layers for member in layer]
        found = {p: p.grad.detach() for p in parameters if p.grad is not None}
        self._squares += self._squared(found)
        self._check(float(loss.detach()))
        for parameter, gradient in found.items():
            if parameter in self._sum:
                self._sum[parameter] += gradient
            else:
                self._sum[parameter] = gradient.clone()

    def signal_and_noise(self) -> FloatArray:
        """Return the signal and the noise over the whole batch, (2, layers)."""
        m = self._pieces
        products = self._squared(self._sum) - self._squares
        signal = products / (m * (m - 1))
        return np.stack([signal, (self._squares / m - signal) / m])

    def finish(self) -> None:
        """Move all layers by the mean gradient."""
        for parameter, gradient in self._sum.items():
            parameter.grad = gradient / self._pieces
        self._optimizer.step()

    def _squared(self, tensors: Mapping[Tensor, Tensor]) -> FloatArray:
        """Return the squared Euclidean norm of each layer."""
        rows = []
        for layer in self._layers:
            row = torch.zeros((), device=self._device)
            for member in layer:
                if member.parameter in tensors:
                    found = tensors[member.parameter]
                    row = row + inner(found, found).to(self._device)
            rows.append(row)
        return np.array(torch.stack(rows).tolist())

    def _check(self, loss: float) -> None:
        if not (math.isfinite(loss) and np.isfinite(self._squares).all()):
            raise ValueError(
                f"loss and its gradient must be finite along the run, got a loss of {loss} after "
                f"{self._index} steps; lower lr"
            )


def _ratio(signal: FloatArray, noise: FloatArray) -> FloatArray:
    """Return noise over signal within `_RANGE`; its least value where there is no gradient."""
    low, high = _RANGE
    noise = np.maximum(noise, 0.0)
    found = np.full(signal.shape, high)
    np.divide(noise, signal, out=found, where=signal > 0)
    return np.where((noise == 0) & (signal == 0), low, np.clip(found, low, high))


def _slope(places: FloatArray, ratios: FloatArray) -> FloatArray:
    """Return the exponent with which ratios (..., windows, layers) grow, common to all layers."""
    level = np.log(ratios).mean(axis=-1)
    centred = places - places.mean()
    found = (level * centred).sum(axis=-1) / max(float(centred @ centred), 1e-12)
    return np.asarray(np.clip(found, 0.0, _STEEPEST))
