"""What every sampler answers: a draw, its support and its marginals."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ActiveSet", "FloatArray", "Sampler", "active_set", "check_progress", "count"]

ActiveSet: TypeAlias = tuple[int, ...]
"""The layers that move in a step: ascending, without duplicates, never empty."""

FloatArray: TypeAlias = npt.NDArray[np.float64]


class Sampler(ABC):
    """A distribution over active sets, maybe changing with training progress.

    Samplers are immutable and hold no random state: a draw is a function of the generator, the
    number of layers and the progress. `repr` describes a sampler completely.
    """

    @abstractmethod
    def sample(self, num_layers: int, rng: np.random.Generator, progress: float = 0.0) -> ActiveSet:
        """Draw the active set of one step; `progress` runs from 0 to 1 over training."""

    @abstractmethod
    def support(self, num_layers: int) -> tuple[ActiveSet, ...]:
        """List every set that has a positive probability at some progress."""

    @abstractmethod
    def marginals(self, num_layers: int, progress: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return `F[i] = P(min S <= i)` and `Q[i] = P(i in S)` in closed form.

        Both have length `num_layers`. They are the marginals of the section "Optimizing the Cost":
        backward reaches layer i with probability F[i], and layer i moves with probability Q[i].
        """

    @abstractmethod
    def check(self, num_layers: int) -> None:
        """Raise ValueError if this sampler cannot serve `num_layers` layers."""

    @property
    @abstractmethod
    def needs_progress(self) -> bool:
        """Whether the probabilities change with progress."""


def count(argument: str, given: SupportsIndex) -> int:
    """Return `given` as an int of at least 1, or say which argument is not one."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{argument} must be an integer, got {given!r}; give a count") from None
    if number < 1:
        raise ValueError(f"{argument} must be at least 1, got {number}; give a positive count")
    return number


def check_progress(progress: float) -> None:
    """Raise ValueError unless progress is in [0, 1]."""
    if not 0.0 <= progress <= 1.0:
        raise ValueError(
            f"progress must be between 0 and 1, got {progress}; divide the step by the total"
        )


def active_set(argument: str, layers: Iterable[SupportsIndex]) -> ActiveSet:
    """Return the layers as an active set: ascending, distinct, not empty, none negative."""
    try:
        indices = sorted(operator.index(layer) for layer in layers)
    except TypeError:
        raise TypeError(
            f"{argument} must hold sets of layer indices, got {layers!r}; "
            "give each as a tuple of integers"
        ) from None
    if not indices:
        raise ValueError(f"{argument} must not hold an empty set, got {layers!r}; remove it")
    if indices[0] < 0:
        raise ValueError(
            f"{argument} must hold layer indices from 0 up, got {indices[0]}; "
            "count layers from the input"
        )
    if len(set(indices)) != len(indices):
        raise ValueError(
            f"{argument} must name a layer once per set, got {tuple(indices)}; "
            "remove the repeated index"
        )
    return tuple(indices)
