"""The signal and the noise of each layer's gradient, from the parts of a step.

Let g_1, g_2, ... be the gradients of a layer over different parts of one batch. The mean of their
inner products <g_p, g_r>, p != r, is the squared norm of the true gradient: the signal S. The mean
of their squares |g_p|^2 is S plus the variance of a part's gradient, so the noise follows by
subtraction. Both are sums over gradients as they arrive, each against what has been accumulated
already: no further pass, no copy of a gradient, and nothing waits for the device before `read`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from dropmuon.norms.numerics import inner
from dropmuon.shards import Group

__all__ = ["Arrival", "NoiseMeter"]


@dataclass(frozen=True)
class Arrival:
    """A part's gradient: by which factors it arrives and is kept, and its share of the batch."""

    own: float
    kept: float
    share: float


class NoiseMeter:
    """Sums over the gradients of one step, per layer."""

    def __init__(self) -> None:
        self._squares: dict[int, Tensor] = {}
        self._products: dict[int, Tensor] = {}
        self._arrivals: dict[int, dict[int, Arrival]] = {}
        self._last_part: dict[Tensor, int] = {}
        self._is_sound = True

    def add(
        self, parameter: Tensor, layer: int, gradient: Tensor, part: int, arrival: Arrival
    ) -> None:
        """Add the gradient of a part, before it is accumulated in `parameter.grad`."""
        if self._last_part.get(parameter) == part:
            self._is_sound = False  # a part of several losses: its gradients are not independent
        self._last_part[parameter] = part
        arrivals = self._arrivals.setdefault(layer, {})
        _add(self._squares, layer, inner(gradient, gradient))
        if parameter.grad is not None and arrivals.keys() - {part}:
            _add(self._products, layer, inner(gradient, parameter.grad))
        arrivals.setdefault(part, arrival)

    def read(self, num_layers: int, group: Group = None) -> tuple[list[float], list[float]]:
        """Return the signal and the noise over the whole batch of each layer; NaN where unknown.

        Where there are ranks, signal and noise are those of the batches of all of a group, or of
        all there are: one all-reduce of two numbers per layer, so that all ranks agree.
        """
        device = next((value.device for value in self._squares.values()), torch.device("cpu"))
        sums = torch.zeros(2, num_layers, device=device)
        for row, found in enumerate((self._squares, self._products)):
            for layer, value in found.items():
                sums[row, layer] = value.to(device)
        if not self._is_sound:
            sums.fill_(math.nan)
        ranks = _average_over_ranks(sums, group)
        pairs = [
            _estimate(list(self._arrivals.get(layer, {}).values()), squares, products)
            for layer, (squares, products) in enumerate(zip(*sums.tolist(), strict=True))
        ]
        return [signal for signal, _ in pairs], [noise / ranks for _, noise in pairs]


def _estimate(arrivals: list[Arrival], squares: float, products: float) -> tuple[float, float]:
    """Solve for signal S and noise N over the whole batch.

    products = S sum_p own_p sum_{r<p} kept_r and squares = sum_p own_p^2 (S + N / share_p), both
    on average.
    """
    kept = pairs = 0.0
    for arrival in arrivals:
        pairs += arrival.own * kept
        kept += arrival.kept
    if not pairs:
        return math.nan, math.nan
    signal = products / pairs
    alone = sum(arrival.own**2 for arrival in arrivals)
    spread = sum(arrival.own**2 / arrival.share for arrival in arrivals)
    return signal, (squares - signal * alone) / spread


def _add(sums: dict[int, Tensor], layer: int, value: Tensor) -> None:
    known = sums.get(layer)
    sums[layer] = value if known is None else known + value.to(known.device)


def _average_over_ranks(sums: Tensor, group: Group) -> int:
    """Average in place over a process group; return its size."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    ranks = distributed.get_world_size(group)
    if ranks > 1:
        distributed.all_reduce(sums, group=group)
        sums /= ranks
    return ranks
