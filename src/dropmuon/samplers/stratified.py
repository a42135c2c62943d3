"""Draws that are spread evenly over windows of steps, to lower the variance between seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from dropmuon.checks import whole_number
from dropmuon.samplers.adaptive import Adaptive
from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler
from dropmuon.samplers.progressive import Full

__all__ = ["Stratified"]


@dataclass(frozen=True)
class Stratified(Sampler):
    """The draws of another sampler, those of every `steps` successive ones made together.

    The sets of a window are a systematic sample in random order, as those of the parts of a step
    are (`Sampler.sample_parts`): a set of probability p comes floor(steps * p) or one more times
    per window. Every single draw has the sampler's own distribution, so that theorems, costs and
    marginals are unchanged (they assume independent steps, which those of a window are not), but
    how often a layer moves in a run hardly depends on the seed any more. The paper asks for such
    a mechanism under "Variance across seeds".
    """

    sampler: Sampler
    steps: int

    def __init__(self, sampler: Sampler, steps: SupportsIndex) -> None:
        if not isinstance(sampler, Sampler) or isinstance(sampler, Adaptive | Full | Stratified):
            raise ValueError(
                f"sampler must be one that draws a set per step, got {sampler!r}; "
                "give one such as Progressive()"
            )
        object.__setattr__(self, "sampler", sampler)
        remedy = "give the number of steps of a window"
        object.__setattr__(self, "steps", whole_number("steps", steps, remedy=remedy))

    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Draw one set, on its own."""
        return self.sampler.sample(num_layers, rng, progress)

    def sample_in_window(
        self, place: int, num_layers: int, rng: np.random.Generator, progress: float = 0.0
    ) -> ActiveSet:
        """Return the set at a place of a window, from the generator of the window."""
        return self.sampler.sample_parts(num_layers, self.steps, rng, progress)[place]

    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List the sets of the sampler."""
        return self.sampler.support(num_layers)

    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return the marginals of the sampler, which windows leave as they are."""
        return self.sampler.marginals(num_layers, progress)

    def distribution(self, num_layers: int, progress: float = 0.0) -> dict[ActiveSet, float]:
        """Return the distribution of the sampler, which is that of every single draw."""
        return self.sampler.distribution(num_layers, progress)

    def check(self, num_layers: int) -> None:
        """Raise ValueError if the sampler cannot serve `num_layers` layers."""
        self.sampler.check(num_layers)

    @property
    def needs_progress(self) -> bool:
        """Whether the probabilities change with progress."""
        return self.sampler.needs_progress
