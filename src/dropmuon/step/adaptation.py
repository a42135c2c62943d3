"""What an adaptive sampler has measured so far, and the shares that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dropmuon.backward.noise import NoiseMeter
from dropmuon.model.work import Work
from dropmuon.samplers import Adaptive, Shares
from dropmuon.samplers.base import FloatArray
from dropmuon.shards import Group

__all__ = ["Adaptation"]

_MEMORY = 0.5
"""The share of the old estimate that a new measurement leaves."""


@dataclass
class Adaptation:
    """The estimates of a run: signal and noise per layer, costs, and the parts of each layer.

    `work` has counted the costs in the first step, unless the rule has them.
    """

    rule: Adaptive
    num_layers: int
    parts: int
    start: int = 0
    work: Work | None = None
    costs: tuple[float, tuple[float, ...]] | None = None
    counts: tuple[int, ...] | None = None
    next_step: int = field(init=False)
    signal: FloatArray = field(init=False)
    noise: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.costs = self.rule.costs
        self.next_step = self.start
        self.signal = np.full(self.num_layers, math.nan)
        self.noise = np.full(self.num_layers, math.nan)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The noise-to-signal ratio of each layer's gradient over the whole batch; NaN at first."""
        found = self.rule.ratios(self.signal, self.noise)
        return tuple(np.where(np.isnan(self.signal), math.nan, found).tolist())

    def measures_at(self, step: int) -> bool:
        """Return whether noise is measured in a step."""
        return step >= self.next_step

    def sampler_at(self, step: int) -> Shares | None:
        """Return what the parts of a step are drawn from; None for full steps.

        Where noise is measured, every layer is active in two parts at least.
        """
        if self.counts is None or step < self.start + self.rule.first:
            return None
        least = 2 if self.measures_at(step) else 1
        return Shares([max(count, least) / self.parts for count in self.counts])

    def learn(self, step: int, meter: NoiseMeter, turns: int, group: Group = None) -> None:
        """Learn from a measured step: how noisy gradients are and, once, what layers cost.

        What all ranks of a group have measured counts, or of all there are.
        """
        if self.costs is None and self.work is not None:
            fixed, backward = self.work.costs(turns)
            self.costs = fixed, tuple(backward)
        self.note(step, *meter.read(self.num_layers, group))

    def note(self, step: int, signal: Sequence[float], noise: Sequence[float]) -> None:
        """Learn from a measurement. What could not be measured keeps its estimate."""
        self.signal = _blended(self.signal, signal)
        self.noise = _blended(self.noise, noise)
        self.next_step = self.start + self.rule.next_measurement(step - self.start)
        known = ~(np.isnan(self.signal) | np.isnan(self.noise))
        if self.costs is None or not known.any():
            return
        # A layer that has had no gradient yet decides nothing.
        quiet = np.where(known, self.noise, 0.0)
        signal_or_one = np.where(known, self.signal, 1.0)
        self.counts = self.rule.counts(*self.costs, signal_or_one, quiet, self.parts)

    def state(self) -> dict[str, Any]:
        """Return what a saved state holds: plain numbers and lists."""
        return {
            "start": self.start,
            "next_step": self.next_step,
            "costs": None if self.costs is None else [self.costs[0], list(self.costs[1])],
            "counts": None if self.counts is None else list(self.counts),
            "signal": self.signal.tolist(),
            "noise": self.noise.tolist(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.start, self.next_step = state["start"], state["next_step"]
        costs, counts = state["costs"], state["counts"]
        self.costs = None if costs is None else (costs[0], tuple(costs[1]))
        self.counts = None if counts is None else tuple(counts)
        self.signal = np.array(state["signal"], dtype=np.float64)
        self.noise = np.array(state["noise"], dtype=np.float64)


def _blended(old: FloatArray, new: Sequence[float]) -> FloatArray:
    """Return the old estimate moved towards a new one; either alone where the other is unknown."""
    fresh = np.array(new, dtype=np.float64)
    fresh[~np.isfinite(fresh)] = math.nan
    blend = _MEMORY * old + (1.0 - _MEMORY) * fresh
    return np.where(np.isnan(old), fresh, np.where(np.isnan(fresh), old, blend))
