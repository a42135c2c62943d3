"""The active sets of a run: a pure function of seed, step and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dropmuon.checks import unknown_name, whole_number
from dropmuon.samplers import ActiveSet, Sampler, Stratified

__all__ = ["Draws", "FullStart", "check_windows", "joined"]

FullStart: TypeAlias = bool | Literal["momentum"]
"""What the first step does for all layers: move them, or only start their momentum."""


@dataclass
class Draws:
    """The sequence of active sets. One step is full, by default the first; windows follow.

    With `full_start="momentum"` that step computes all gradients, but only the drawn set moves.

    All ranks of a process group draw the same sets without communication, and a resumed run draws
    what an unbroken one would, because a draw depends on nothing but the fields below.
    """

    sampler: Sampler
    seed: int = 0
    resample_every: int = 1
    total_steps: int | None = None
    full_start: FullStart = True
    turns: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.full_start, bool) and self.full_start != "momentum":
            raise unknown_name("full_start", str(self.full_start), ["True", "False", "momentum"])
        self.full_step: int | None = 0 if self.full_start else None
        self.resample_every = whole_number("resample_every", self.resample_every)
        self.seed = whole_number("seed", self.seed, least=0, most=2**64 - 1)
        self.turns = whole_number("turns", self.turns)
        if self.total_steps is not None:
            self.total_steps = whole_number("total_steps", self.total_steps)
        elif self.sampler.needs_progress:
            raise ValueError(
                f"total_steps is missing: {self.sampler!r} changes with progress; give the number "
                "of step() calls that you plan"
            )

    def make_full(self, step: int) -> None:
        """Make a step full, whatever the sampler: layers were added, or it is still due."""
        self.full_step = step

    def at(self, step: int, num_layers: int) -> ActiveSet:
        """Return the active set of a step of one part."""
        return self.sets_at(step, num_layers, 1)[0]

    def sets_at(
        self, step: int, num_layers: int, parts: int, shares: Sampler | None = None
    ) -> tuple[ActiveSet, ...]:
        """Return the sets that move in a step, one per part, drawn together.

        `shares`, where given, stand in for the sampler.
        """
        sampler = shares or self.sampler
        if self.is_full(step) and self.full_start != "momentum":
            return (tuple(range(num_layers)),) * parts
        first = int(self.full_start is True)
        window = (step - first) // self.resample_every
        progress = self.progress(window * self.resample_every + first)
        if isinstance(sampler, Stratified) and parts == 1:
            stratum, place = divmod(window, sampler.steps)
            rng = self._generator(stratum)
            return (sampler.sample_in_window(place, num_layers, rng, progress),)
        rng = self._generator(window)
        if parts == 1:
            return (sampler.sample(num_layers, rng, progress),)
        return sampler.sample_parts(num_layers, parts, rng, progress)

    def turn_at(self, step: int) -> int | None:
        """Return whose turn it is to move; None in a full step, in which every parameter moves."""
        return None if self.is_full(step) else step % self.turns

    def progress(self, step: int) -> float:
        """Return the share of the planned run before a step, in [0, 1]."""
        return min(step / self.total_steps, 1.0) if self.total_steps else 0.0

    def is_full(self, step: int) -> bool:
        """Return whether a step computes the gradients of all layers, whatever the sampler."""
        return step == self.full_step or (step == 0 and self.full_start is not False)

    def _generator(self, window: int) -> np.random.Generator:
        key = np.array([self.seed, window], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))


def check_windows(sampler: Sampler, parts: int) -> None:
    """Raise ValueError where windows of steps would spread what parts have spread already."""
    if parts > 1 and isinstance(sampler, Stratified):
        raise ValueError(
            f"parts={parts} and {sampler!r} cannot be combined: the sets of a step's parts are "
            f"drawn evenly already; give sampler={sampler.sampler!r}"
        )


def joined(drawn: ActiveSet, is_able: Callable[[int], bool], num_layers: int) -> ActiveSet:
    """Return `drawn`, with the last layer that can have a gradient added if it holds none.

    In PyTorch a backward without any trainable layer in its graph is an error.
    """
    if any(map(is_able, drawn)):
        return drawn
    last = [layer for layer in range(num_layers) if is_able(layer)][-1:]
    return tuple(sorted({*drawn, *last}))
