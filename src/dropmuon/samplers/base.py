"""The interface of all samplers, and the definition of an active set."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from dropmuon.checks import whole_number

__all__ = ["ActiveSet", "FloatArray", "Sampler", "active_set", "check_progress", "layer_count"]

ActiveSet: TypeAlias = tuple[int, ...]
"""The layers that move in a step: ascending, without duplicates, never empty."""

FloatArray: TypeAlias = npt.NDArray[np.float64]


class Sampler(ABC):
    """A distribution over active sets, which may change with training progress.

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

    def distribution(self, num_layers: int, progress: float = 0.0) -> dict[ActiveSet, float]:
        """Return the probability of every set that can be drawn at this progress.

        The sets are in the order of `support`; the dictionary belongs to the caller. Where all
        sets have different cutoffs, the steps of F are their probabilities, and this method does
        the rest. A sampler with several sets per cutoff overrides it.
        """
        sets = self.support(num_layers)
        if len({layers[0] for layers in sets}) < len(sets):
            raise NotImplementedError(
                f"{type(self).__name__} must define distribution(num_layers, progress), since some "
                "of its sets share a cutoff; return a dict of the probability of each set"
            )
        starts = np.diff(self.marginals(num_layers, progress)[0], prepend=0.0).tolist()
        return {layers: starts[layers[0]] for layers in sets if starts[layers[0]] > 0}

    def sample_parts(
        self, num_layers: int, parts: int, rng: np.random.Generator, progress: float = 0.0
    ) -> tuple[ActiveSet, ...]:
        """Draw the sets of all parts of a step together, by systematic sampling, in random order.

        The points (u + j) / parts, j = 0, ..., parts - 1, with one uniform u, are looked up in the
        cumulative probabilities. So a set of probability p is drawn floor(parts * p) or one more
        times, and a layer of nested sets is in floor(parts * Q_i) or one more parts. The least
        cutoffs come first before the order is permuted. Where there are too many sets to list,
        the parts are drawn independently of each other.
        """
        try:
            chances = self.distribution(num_layers, progress)
        except (NotImplementedError, ValueError):
            return tuple(self.sample(num_layers, rng, progress) for _ in range(parts))
        sets = sorted(chances)
        ends = np.cumsum([chances[layers] for layers in sets])
        points = (rng.random() + np.arange(parts)) / parts * ends[-1]
        drawn = ends.searchsorted(points, side="right")
        return tuple(sets[min(drawn[j], len(sets) - 1)] for j in rng.permutation(parts))

    def expected_parts(self, num_layers: int, parts: int, progress: float = 0.0) -> FloatArray:
        """Return in how many of a step's parts each layer is active, on average."""
        return parts * self.marginals(num_layers, progress)[1]

    @abstractmethod
    def check(self, num_layers: int) -> None:
        """Raise ValueError if this sampler cannot serve `num_layers` layers."""

    @property
    @abstractmethod
    def needs_progress(self) -> bool:
        """Whether the probabilities change with progress."""


def check_progress(progress: float) -> None:
    """Raise ValueError unless progress is in [0, 1]."""
    if not 0.0 <= progress <= 1.0:
        raise ValueError(
            f"progress must be between 0 and 1, got {progress}; divide the step by the total"
        )


def layer_count(num_layers: SupportsIndex) -> int:
    """Return `num_layers` as an int of at least 1, or raise ValueError."""
    return whole_number("num_layers", num_layers, remedy="give the number of layers of the model")


def active_set(
    argument: str, layers: Iterable[SupportsIndex], num_layers: int | None = None
) -> ActiveSet:
    """Return the layers as an active set: ascending, distinct, at least one, from 0 up.

    With `num_layers`, every index must be below it. Errors name `argument`.
    """
    try:
        indices = tuple(sorted(operator.index(layer) for layer in layers))
    except TypeError:
        raise ValueError(
            f"{argument} must hold layer indices, got {layers!r}; give a set as a tuple of integers"
        ) from None
    if not indices:
        raise ValueError(
            f"{argument} must name at least one layer per set, got {layers!r}; "
            "name one, or remove the set"
        )
    if indices[0] < 0 or (num_layers is not None and indices[-1] >= num_layers):
        accepted = "from 0 up" if num_layers is None else f"from 0 to {num_layers - 1}"
        raise ValueError(
            f"{argument} must hold layer indices {accepted}, got {indices}; "
            "count layers from 0, the one next to the input"
        )
    if len(set(indices)) != len(indices):
        raise ValueError(
            f"{argument} must name a layer once per set, got {indices}; remove the repeated index"
        )
    return indices
