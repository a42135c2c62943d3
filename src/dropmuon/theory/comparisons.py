"""Full updates compared with other distributions over active sets.

Costs are compared up to the factor that both sides share: gap/epsilon in the smooth case, and
2 gap/epsilon^2 or 2 gap/epsilon where one term of the (L0, L1) case dominates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from dropmuon.checks import whole_number
from dropmuon.samplers.base import ActiveSet
from dropmuon.theory.complexity import Means, Regime
from dropmuon.theory.costs import Costs, Sampling, cost_of_set, expected_cost, nonnegative
from dropmuon.theory.leading_order import StochasticCase
from dropmuon.theory.partitions import check_blocks
from dropmuon.theory.smoothness import Smoothness

__all__ = [
    "Comparison",
    "against_full",
    "grouped_by_cost",
    "grouped_evenly",
    "relative_cost",
    "transformer_exact",
    "transformer_limit",
]


@dataclass(frozen=True)
class Comparison:
    """Both sides of an inequality: a distribution's cost, and the cost of full updates."""

    sampled: float
    full: float

    @property
    def better(self) -> bool:
        """Whether the distribution costs no more than full updates."""
        return self.sampled <= self.full

    @property
    def ratio(self) -> float:
        """The distribution's cost as a share of the cost of full updates; nan if both are 0."""
        if self.full == 0:
            return math.nan if self.sampled == 0 else math.inf
        return self.sampled / self.full


def relative_cost(
    sampler: Sampling,
    costs: Costs,
    smoothness: Smoothness,
    regime: Regime = "smooth",
    progress: float = 0.0,
    case: StochasticCase | None = None,
) -> float:
    """Return cost_eps(D) = K E[cost(S)] (eq. exp_cost_gen), without rounding and shared factors.

    "smooth": E[cost] / min_i w_i, with the weights of Theorem "rt_smooth_iter". "1/eps" and
    "1/eps^2": the objectives of eq. cost_opt_prob_e and eq. cost_opt_prob_e2. "stochastic", which
    needs a `case`: Theorem "stoch_rt_l0l1_iter" to leading order, see `leading_order`.
    """
    _same_layers(costs, smoothness)
    steps = Means.of(sampler, smoothness, progress).relative_iterations(regime, case)
    return expected_cost(sampler, costs, progress) * float(steps)


def against_full(
    sampler: Sampling,
    costs: Costs,
    smoothness: Smoothness,
    regime: Regime = "smooth",
    progress: float = 0.0,
    case: StochasticCase | None = None,
) -> Comparison:
    """Compare any distribution with full updates, which need the constants of the full set."""
    everything = {tuple(range(costs.num_layers)): 1.0}
    return Comparison(
        relative_cost(sampler, costs, smoothness, regime, progress, case),
        relative_cost(everything, costs, smoothness, regime, progress, case),
    )


def grouped_by_cost(
    costs: Costs, smoothness: Smoothness, blocks: Iterable[Iterable[int]]
) -> Comparison:
    """Return both sides of eq. partition_better_explicit, grouping layers by cost similarity.

    Left, a partition at its optimal probabilities: sum_k max_{i in B_k} L0_{i,B_k} d_k with
    d_k = c_ov + sum_{j >= min B_k} c_j + sum_{j in B_k} c_j^sharp (the last is |B_k| c_k^sharp
    where costs agree within a block). Right, full updates: max_i L0_{i,[b]} d_1.
    """
    partition = check_blocks(blocks, _same_layers(costs, smoothness))
    everything = tuple(range(costs.num_layers))
    left = sum(cost_of_set(costs, B) * _worst(smoothness, B) for B in partition)
    return Comparison(left, cost_of_set(costs, everything) * _worst(smoothness, everything))


def grouped_evenly(costs: Costs, blocks: Iterable[Iterable[int]]) -> Comparison:
    """Return both sides where each of m blocks has 1/m of the full model's constant.

    The closing inequality of the example "Grouping layers by cost similarity": the mean over
    blocks of the tail sum_{j >= min B_k} c_j plus sum_{j in B_k} c_j^sharp, against
    sum_j (c_j + c_j^sharp). Each summand on the left is at most the right: it always holds.
    """
    partition = check_blocks(blocks, costs.num_layers)
    left = np.mean([costs.layer[B[0] :].sum() + costs.sharp[list(B)].sum() for B in partition])
    return Comparison(float(left), float(costs.layer.sum() + costs.sharp.sum()))


def transformer_exact(
    num_blocks: SupportsIndex, block: Costs, position_constants: npt.ArrayLike, full_constant: float
) -> Comparison:
    """Return both sides of eq. compare_exact: T identical transformer blocks of L layers.

    `block` has the overhead of a step and the costs of the L layers of one transformer block;
    `position_constants[l]` = L0_l is the constant of the layers at place l when they move
    together, and `full_constant` = max_i L0_{i,[b]}.
    """
    T = whole_number("num_blocks", num_blocks, remedy="count the transformer blocks")
    constants, most = _position_constants(position_constants, full_constant, block.num_layers)
    C, C_sharp = block.layer.sum(), block.sharp.sum()
    tail = block.layer[::-1].cumsum()[::-1]
    left = constants @ (block.overhead + tail + (T - 1) * C + T * block.sharp)
    return Comparison(float(left), float(most * (block.overhead + T * C + T * C_sharp)))


def transformer_limit(
    block: Costs, position_constants: npt.ArrayLike, full_constant: float
) -> Comparison:
    """Return both sides of eq. compare_asymp: eq. compare_exact per block, for many blocks."""
    constants, most = _position_constants(position_constants, full_constant, block.num_layers)
    C, C_sharp = block.layer.sum(), block.sharp.sum()
    return Comparison(float(constants @ (C + block.sharp)), float(most * (C + C_sharp)))


def _position_constants(
    given: npt.ArrayLike, full: float, length: int
) -> tuple[npt.NDArray[np.float64], float]:
    constants = nonnegative("position_constants", given, length=length)
    if not np.isfinite(full) or full <= 0:
        raise ValueError(
            f"full_constant must be finite and above 0, got {full!r}; estimate it again"
        )
    return constants, float(full)


def _worst(smoothness: Smoothness, layers: ActiveSet) -> float:
    return float(smoothness.constants(0, layers).max())


def _same_layers(costs: Costs, smoothness: Smoothness) -> int:
    if costs.num_layers != smoothness.num_layers:
        raise ValueError(
            f"costs and smoothness must be of the same layers, got {costs.num_layers} and "
            f"{smoothness.num_layers}; measure both on one model"
        )
    return costs.num_layers
