"""Shares of the batch that follow the measured noise of each layer's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dropmuon.checks import nonnegative_number, whole_number
from dropmuon.samplers.allocation import CAUTION, DOUBT, best_counts
from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, check_progress, layer_count

__all__ = ["Adaptive"]

_NO_SIGNAL = 1e6
"""The noise-to-signal ratio of a layer whose signal is not above zero."""

_LONGEST = 64
"""The most steps from one measurement to the next."""


@dataclass(frozen=True)
class Adaptive(Sampler):
    """All layers move at every step, each by the share of the batch that its noise asks for.

    The optimizer starts with full steps and measures, from the parts of a step, the noise-to-signal
    ratio nu_i of each layer's gradient. Steps needed grow as 1 + nu / q with a share q of the
    batch, so relative to full shares layer i makes the progress (1 + nu_i) / (1 + nu_i / q_i);
    `counts` maximises its mean over layers per cost. Without noise shares are small; as noise grows
    they rise, and where it asks for the whole batch the method is full Drop-Muon.

    Args:
        costs: what a step costs whatever the shares (forward and updates), and the backward of each
            layer over the whole batch; by default counted from the first step.
        caution: what measured noise is multiplied by; by default the most that it may have to be,
            since a share that is too large costs less than one that is too small.
        first: how many full steps to start with.
        every: the least number of steps between measurements; the interval grows with the run.
    """

    costs: tuple[float, tuple[float, ...]] | None = None
    caution: float = field(default=CAUTION * DOUBT, kw_only=True)
    first: int = field(default=2, kw_only=True)
    every: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        if self.costs is not None:
            try:
                fixed, backward = self.costs
            except (TypeError, ValueError):
                raise ValueError(
                    "costs must be a pair (fixed, backward of each layer), got "
                    f"{self.costs!r}; leave costs out to have them counted"
                ) from None
            best_counts(backward, fixed, 0.0, 1.0, 2)  # checks them
            values = tuple(float(cost) for cost in backward)
            object.__setattr__(self, "costs", (float(fixed), values))
        nonnegative_number("caution", self.caution)
        whole_number("first", self.first)
        whole_number("every", self.every)

    def counts(
        self,
        fixed: float,
        backward: Sequence[float],
        signal: FloatArray,
        noise: FloatArray,
        parts: int,
    ) -> tuple[int, ...]:
        """Return in how many parts each layer should be active, given what was measured."""
        nu = self.caution * self.ratios(signal, noise)
        return best_counts(backward, fixed, nu, 1.0 + nu, parts)

    def ratios(self, signal: FloatArray, noise: FloatArray) -> FloatArray:
        """Return nu_i, the noise-to-signal ratio of each layer."""
        found: FloatArray = np.full(signal.shape, _NO_SIGNAL)
        np.divide(np.maximum(noise, 0.0), signal, out=found, where=signal > 0)
        return np.minimum(found, _NO_SIGNAL)

    def next_measurement(self, step: int) -> int:
        """Return the step after this one at which noise is measured again."""
        if step + 1 < self.first:
            return step + 1
        return step + min(max(self.every, step // 4), max(self.every, _LONGEST))

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Return all layers, as for steps in which nothing is known yet."""
        check_progress(progress)
        return tuple(range(layer_count(num_layers)))

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List every set of layers up to the output: shares may choose any of them."""
        b = layer_count(num_layers)
        return tuple(tuple(range(cutoff, b)) for cutoff in range(b))

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return F = Q = 1: every layer moves at every step."""
        check_progress(progress)
        return np.ones(layer_count(num_layers)), np.ones(num_layers)

    @property
    def needs_progress(self) -> bool:
        """False: shares follow what is measured, not the progress."""
        return False

    def check(self, num_layers: int) -> None:
        """Raise ValueError if costs were given for another number of layers."""
        layer_count(num_layers)
        if self.costs is not None and len(self.costs[1]) != num_layers:
            raise ValueError(
                f"costs must have the backward of each of the {num_layers} layers, got "
                f"{len(self.costs[1])}; leave costs out to have them counted"
            )
