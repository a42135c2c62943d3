"""The cost of a step, and its mean over a distribution D of active sets.

The paper's section "Cost Model": overhead, the passes through the layers, and the sharp operators.
Layers are counted from 0, the layer next to the input. A cost is in any unit that adds up: seconds,
operations. D is a sampler, or a mapping from sets to probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from dropmuon.checks import whole_number
from dropmuon.samplers.base import ActiveSet, FloatArray, Sampler, active_set

__all__ = [
    "Costs",
    "Sampling",
    "StepCosts",
    "cost_of_set",
    "distribution_of",
    "expected_cost",
    "members",
    "nonnegative",
    "numbers",
    "tail_costs",
]

Sampling: TypeAlias = Sampler | Mapping[ActiveSet, float]
"""A distribution D over active sets: a sampler, or the probability of each set."""

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Costs:
    """The constants of the paper's cost of a step, cost(S) (eq. cost_k).

    Attributes:
        overhead: c_ov, paid by every step.
        layer: c_i, paid for every layer from the cutoff on: forward and input gradient.
        sharp: c_i^sharp, paid for every active layer: weight gradient, sharp operator, update.
    """

    overhead: float
    layer: FloatArray
    sharp: FloatArray

    def __init__(self, overhead: float, layer: npt.ArrayLike, sharp: npt.ArrayLike) -> None:
        passes = nonnegative("layer", layer)
        object.__setattr__(self, "overhead", _amount("overhead", overhead))
        object.__setattr__(self, "layer", passes)
        object.__setattr__(self, "sharp", nonnegative("sharp", sharp, length=passes.size))
        if not (self.overhead > 0 or self.layer.any() or self.sharp.any()):
            raise ValueError(
                "overhead, layer and sharp must not all be 0, got only zeros; "
                "make at least one cost positive"
            )

    @property
    def num_layers(self) -> int:
        """The number of layers, b."""
        return self.layer.size

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Costs)
            and self.overhead == other.overhead
            and np.array_equal(self.layer, other.layer)
            and np.array_equal(self.sharp, other.sharp)
        )

    def __hash__(self) -> int:
        return hash((self.overhead, self.layer.tobytes(), self.sharp.tobytes()))


@dataclass(frozen=True, eq=False)
class StepCosts:
    """The cost of a step, with forward and backward separate.

    The paper treats the forward pass of the frozen prefix as free, since it "may be cached and
    reused". That holds while the batch stays the same. Each reading below is of the paper's form
    c_0 + sum_i a_i F_i + sum_i c_i^sharp Q_i: what does not depend on the cutoff goes to
    `Costs.overhead`, what is paid from the cutoff on goes to `Costs.layer`.

    Attributes:
        overhead: paid by every update.
        forward: the forward pass, per layer.
        backward: the backward pass, per layer, down to its output: an inactive layer above the
            cutoff pays it, too.
        sharp: the sharp operator and the update, per layer.
        batch: paid once per batch, such as for loading it.
        weight: the weight gradient, per layer, where it is not part of `backward`. Inactive layers
            do not compute it.
    """

    overhead: float
    forward: FloatArray
    backward: FloatArray
    sharp: FloatArray
    batch: float
    weight: FloatArray

    def __init__(
        self,
        overhead: float,
        forward: npt.ArrayLike,
        backward: npt.ArrayLike,
        sharp: npt.ArrayLike,
        batch: float = 0.0,
        weight: npt.ArrayLike | None = None,
    ) -> None:
        first = nonnegative("forward", forward)
        own = np.zeros(first.size) if weight is None else weight
        object.__setattr__(self, "overhead", _amount("overhead", overhead))
        object.__setattr__(self, "forward", first)
        object.__setattr__(self, "backward", nonnegative("backward", backward, length=first.size))
        object.__setattr__(self, "sharp", nonnegative("sharp", sharp, length=first.size))
        object.__setattr__(self, "batch", _amount("batch", batch))
        object.__setattr__(self, "weight", nonnegative("weight", own, length=first.size))

    @property
    def num_layers(self) -> int:
        """The number of layers, b."""
        return self.forward.size

    def fresh(self) -> Costs:
        """Return the costs where every update has its own batch and a full forward pass.

        cost(S) = overhead + batch + sum_all forward_i + sum_{i>=s} backward_i + sharp and weight
        of S.
        """
        return self.reused(1)

    def in_parts(self) -> Costs:
        """Return the costs of a step in parts, in which all layers move: C(q) of `theory.shares`.

        The weight gradient, like the rest of backward, is paid for a layer's share q_i of the batch
        only: C(q) = overhead + batch + sum_all forward_i + sum_i q_i (backward_i + weight_i) +
        sum_i sharp_i.
        """
        once = self.overhead + self.batch + float(self.forward.sum())
        return Costs(once, self.backward + self.weight, self.sharp)

    def reused(self, updates: SupportsIndex) -> Costs:
        """Return the costs per update where r = `updates` share a batch and the prefix's forward.

        cost(S) = overhead + batch/r + sum_{i<s} forward_i/r + sum_{i>=s} (forward_i + backward_i)
        + sharp and weight of S. The prefix is sum_all forward_i/r less sum_{i>=s} forward_i/r. So
        c_0 = overhead + (batch + sum_all forward_i)/r and
        a_i = (1 - 1/r) forward_i + backward_i.
        """
        r = whole_number("updates", updates, remedy="1 means a fresh batch for every update")
        once = (self.batch + float(self.forward.sum())) / r
        again = (1.0 - 1.0 / r) * self.forward
        return Costs(self.overhead + once, again + self.backward, self.weight + self.sharp)

    def cached(self) -> Costs:
        """Return the costs in the paper's reading: the forward pass of the frozen prefix is free.

        cost(S) = overhead + batch + sum_{i>=s} (forward_i + backward_i) + sharp and weight of S.
        Without a cost per batch it is the limit of `reused` for many updates.
        """
        passes = self.forward + self.backward
        return Costs(self.overhead + self.batch, passes, self.weight + self.sharp)


def tail_costs(costs: Costs) -> FloatArray:
    """Return d_j = c_ov + sum_{i>=j} (c_i + c_i^sharp), the cost of moving layers j, ..., b-1."""
    both = costs.layer + costs.sharp
    tails: FloatArray = costs.overhead + both[::-1].cumsum()[::-1]
    return tails


def cost_of_set(costs: Costs, active: Iterable[int]) -> float:
    """Return cost(S) = c_ov + sum_{i >= min S} c_i + sum_{i in S} c_i^sharp (eq. cost_k)."""
    layers = active_set("active", active, costs.num_layers)
    passes = costs.layer[layers[0] :].sum()
    return costs.overhead + float(passes) + float(costs.sharp[list(layers)].sum())


def expected_cost(sampler: Sampling, costs: Costs, progress: float = 0.0) -> float:
    """Return E[cost(S)] = c_ov + sum_i c_i F_i + sum_i c_i^sharp Q_i (eq. cost_gen).

    F_i = P(min S <= i) and Q_i = P(i in S), section "Optimizing the Cost", are the sampler's
    marginals.
    """
    if not isinstance(sampler, Sampler):
        chances = _validated(sampler, costs.num_layers)
        return math.fsum(p * cost_of_set(costs, layers) for layers, p in chances.items())
    F, Q = sampler.marginals(costs.num_layers, progress)
    return costs.overhead + float(costs.layer @ F) + float(costs.sharp @ Q)


def distribution_of(
    sampler: Sampling, num_layers: int, progress: float = 0.0
) -> dict[ActiveSet, float]:
    """Return the probability of every set that can be drawn at this progress; they sum to 1."""
    if isinstance(sampler, Sampler):
        return _validated(sampler.distribution(num_layers, progress), num_layers)
    return _validated(sampler, num_layers)


def members(sets: Collection[ActiveSet], num_layers: int) -> npt.NDArray[np.bool_]:
    """Return a row per set and a column per layer: whether the set holds the layer."""
    inside = np.zeros((len(sets), num_layers), dtype=np.bool_)
    for row, layers in zip(inside, sets, strict=True):
        row[list(layers)] = True
    return inside


def nonnegative(argument: str, given: npt.ArrayLike, *, length: int | None = None) -> FloatArray:
    """Return a read-only float64 copy of a vector of finite numbers >= 0, or raise ValueError."""
    values = numbers(argument, given)
    if values.ndim != 1:
        raise ValueError(
            f"{argument} must be one-dimensional, got shape {values.shape}; give one per layer"
        )
    if values.size == 0:
        raise ValueError(f"{argument} must not be empty, got no entries; give one per layer")
    if length is not None and values.size != length:
        raise ValueError(
            f"{argument} must have {length} entries, got {values.size}; give one per layer"
        )
    wrong = ~np.isfinite(values) | (values < 0)
    if wrong.any():
        k = int(wrong.argmax())
        raise ValueError(
            f"{argument} must be finite and at least 0, got {values[k]} at index {k}; "
            "measure it again or use 0"
        )
    values += 0.0  # -0.0 becomes 0.0
    values.setflags(write=False)
    return values


def numbers(argument: str, given: object) -> FloatArray:
    """Return a float64 copy of an array, or raise ValueError with the name of the argument."""
    try:
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{argument} must be numbers, got {given!r}; give an array") from None


def _amount(argument: str, given: float) -> float:
    try:
        number = float(given)
    except (TypeError, ValueError):
        raise ValueError(f"{argument} must be a number, got {given!r}; use 0 for none") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{argument} must be finite and at least 0, got {given!r}; use 0 for none")
    return number


def _validated(distribution: Mapping[ActiveSet, float], num_layers: int) -> dict[ActiveSet, float]:
    """Return the sets of positive probability, their probabilities summing to 1."""
    if not isinstance(distribution, Mapping):
        raise TypeError(
            f"sampler must be a Sampler or map sets to probabilities, got {distribution!r}; "
            "give a dict such as {(0, 1): 0.5, (1,): 0.5}"
        )
    found: dict[ActiveSet, float] = {}
    for layers, probability in distribution.items():
        indices, p = active_set("distribution", layers, num_layers), float(probability)
        if not math.isfinite(p) or p < 0:
            raise ValueError(
                f"distribution must hold probabilities of at least 0, got {probability!r} for "
                f"{indices}; use numbers in [0, 1]"
            )
        if indices in found:
            raise ValueError(f"distribution must name a set once, got {indices} twice; add them")
        found[indices] = p
    total = math.fsum(found.values())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise ValueError(f"distribution must sum to 1, got {total:.9g}; divide by the sum")
    return {layers: p / total for layers, p in found.items() if p > 0}
