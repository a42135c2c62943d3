"""When which set is drawn: a pure function of seed, step and settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dropmuon.samplers import ActiveSet, Sampler

__all__ = ["Draws"]


@dataclass
class Draws:
    """The sequence of active sets of a run. Step 0 is full if `full_start`; windows follow.

    All ranks of a process group draw the same sets without talking, and a resumed run draws what
    an unbroken one would, because nothing here has a state.
    """

    sampler: Sampler
    seed: int = 0
    resample_every: int = 1
    total_steps: int | None = None
    full_start: bool = True

    def at(self, step: int, num_layers: int) -> ActiveSet:
        """The active set of a step."""
        if step == 0 and self.full_start:
            return tuple(range(num_layers))
        window = (step - int(self.full_start)) // self.resample_every
        first = window * self.resample_every + int(self.full_start)
        rng = np.random.Generator(
            np.random.Philox(key=np.array([self.seed, window], dtype=np.uint64))
        )
        return self.sampler.sample(num_layers, rng, self.progress(first))

    def progress(self, step: int) -> float:
        """How much of the planned run lies behind a step, in [0, 1]."""
        return min(step / self.total_steps, 1.0) if self.total_steps else 0.0
