"""Optimal probabilities of the blocks of a partition, the paper's partitions, and the best tau.

A partition sampler draws block B_k with probability p_k. In all three regimes the cost, written in
q = p / min_k(p_k / M_k) with M_k = max_{i in B_k} L_{i,B_k}, rises in every q_k >= M_k, so q = M is
optimal: every block is drawn in proportion to its worst constant.

The closing formula of the section "Arbitrary Submodel Sampling" of the generalized case prints L0
in these probabilities. Its derivation has 1 / min_i(p_{k(i)} / L1_{i,B_k(i)}) and gives L1, as the
paper states for contiguous blocks: L1 is used here. The paper gives no probabilities for the
1/eps^2 regime, but the same argument holds: the cost is (sum_k rho_k q_k)(sum_k d_k q_k) with
rho_k = sum_{i in B_k} L0_i / L1_i^2 >= 0, so the probabilities are those of the 1/eps regime.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, SupportsIndex, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from dropmuon.checks import unknown_name, whole_number
from dropmuon.samplers.base import ActiveSet, FloatArray, active_set
from dropmuon.samplers.subsets import Nice
from dropmuon.theory.complexity import Regime, check_case, check_regime
from dropmuon.theory.costs import Costs, cost_of_set, nonnegative, numbers
from dropmuon.theory.leading_order import StochasticCase, leading_iterations
from dropmuon.theory.set_search import optimal_sets
from dropmuon.theory.smoothness import NonMonotoneWarning, Smoothness

__all__ = [
    "PartitionSolution",
    "TauChoice",
    "TauFamily",
    "best_tau",
    "block_costs",
    "check_blocks",
    "contiguous_blocks",
    "nice_factor",
    "optimal_partition",
    "same_position_blocks",
]

TauFamily: TypeAlias = Literal["nice", "partition"]
"""All sets of tau layers alike; or contiguous blocks of tau layers with optimal probabilities."""

Growth: TypeAlias = npt.ArrayLike | str | Callable[[int], float]

LayerConstants: TypeAlias = Smoothness | npt.ArrayLike


_FALL = 1e-6
"""A relative fall of a constant with tau that still counts as rounding."""


@dataclass(frozen=True)
class PartitionSolution:
    """The blocks, their optimal probabilities, and their cost up to a common factor."""

    blocks: tuple[ActiveSet, ...]
    probabilities: FloatArray
    cost: float


@dataclass(frozen=True)
class TauChoice:
    """The best tau, its cost up to a common factor, and the cost of every candidate."""

    tau: int
    cost: float
    candidates: tuple[int, ...]
    candidate_costs: FloatArray


def optimal_partition(
    blocks: Iterable[Iterable[int]],
    constants: LayerConstants,
    costs: Costs,
    regime: Regime = "smooth",
) -> PartitionSolution:
    """Return the best probabilities of the blocks of a partition and their cost.

    `constants` is a `Smoothness` that covers the blocks; or the constant of every layer in its own
    block, L_{i,B_k(i)} in the order of layers: L0 for "smooth" and L1 for "1/eps"; or both,
    `(L0, L1)`, for "1/eps^2". With the step costs d_k of the blocks and M_k their largest constant:

        p_k = M_k / sum_l M_l
        smooth   2 sum_k d_k M_k                          (eq. cost_arbitrary_submod)
        1/eps      sum_k d_k M_k                          (eq. cost_opt_prob_e)
        1/eps^2  (sum_k M_k sum_{i in B_k} L0_i / L1_i^2) sum_k d_k M_k   (eq. cost_opt_prob_e2)
    """
    check_regime(regime)
    if regime == "stochastic":
        raise ValueError(
            "regime 'stochastic' has no closed form for partitions; use optimal_sets(blocks, ...)"
        )
    sets = check_blocks(blocks, costs.num_layers)
    flat, slope = _layer_constants(constants, sets, costs.num_layers, regime)
    worst = np.array([slope[list(block)].max() for block in sets])
    paid = float(block_costs(sets, costs) @ worst)
    if regime == "smooth":
        cost = 2.0 * paid
    elif regime == "1/eps":
        cost = paid
    else:
        share = np.array([(flat[list(block)] / slope[list(block)] ** 2).sum() for block in sets])
        cost = float(worst @ share) * paid
    return PartitionSolution(sets, worst / worst.sum(), cost)


def block_costs(blocks: Sequence[ActiveSet], costs: Costs) -> FloatArray:
    """Return d_k = c_ov + sum_{j >= min B_k} c_j + sum_{j in B_k} c_j^sharp of every block."""
    return np.array([cost_of_set(costs, block) for block in blocks])


def contiguous_blocks(num_layers: SupportsIndex, tau: SupportsIndex) -> tuple[ActiveSet, ...]:
    """Return runs of tau layers (section "Partitioned tau-submodel sampling").

    The paper lets tau divide the number of layers; here the last block takes what is left.
    """
    b = whole_number("num_layers", num_layers, remedy="count the layers")
    size = whole_number("tau", tau, remedy="give the size of a block", most=b)
    return tuple(tuple(range(start, min(start + size, b))) for start in range(0, b, size))


def same_position_blocks(T: SupportsIndex, L: SupportsIndex) -> tuple[ActiveSet, ...]:
    """Group the layers that share a place in T identical transformer blocks of L layers each.

    Example "Grouping layers across transformer blocks": B_l = {l, l+L, ..., l+(T-1)L}, l < L.
    """
    blocks, places = (
        whole_number("T", T, remedy="count the blocks"),
        whole_number("L", L, remedy="count the layers of a block"),
    )
    return tuple(tuple(range(place, blocks * places, places)) for place in range(places))


def best_tau(
    family: TauFamily,
    constants: Growth | tuple[Growth, Growth],
    costs: Costs,
    regime: Regime = "smooth",
    *,
    taus: Iterable[SupportsIndex] | None = None,
    case: StochasticCase | None = None,
) -> TauChoice:
    """Return the tau of least total cost: the smallest one of equals.

    `constants` are those of layer i when tau layers move: a (b, b) table `L[i, tau - 1]`, or the
    same for all layers as a function of tau or one of "constant", "linear" and "sqrt". They are L0
    for "smooth", L1 for "1/eps", and a pair (L0, L1) for "1/eps^2" and for "stochastic", which
    needs a `case` and has the cost of `leading_order`. With B(tau) of `nice_factor`:

        nice, smooth   2 max_i L0[i, tau] B(tau)                             (A B)
        nice, 1/eps      max_i L1[i, tau] B(tau)                             (A_eps B)
        nice, 1/eps^2    max_i L1[i, tau]^2 sum_i L0 / L1[i, tau]^2 B(tau)   (A_eps2 B)

    A "partition" costs what `optimal_partition` says of `contiguous_blocks(b, tau)`, "Choosing tau"
    in the paper; a shorter last block has the constants of its own size. `taus` limits the search,
    for instance to divisors of b.
    """
    check_regime(regime)
    if family not in get_args(TauFamily):
        raise unknown_name("family", str(family), get_args(TauFamily))
    b = costs.num_layers
    given = range(1, b + 1) if taus is None else taus
    candidates = tuple(
        whole_number("taus", tau, remedy="leave taus out to try all", most=b) for tau in given
    )
    if not candidates:
        raise ValueError("taus must be at least one number, got none; leave taus out to try all")
    if regime in ("smooth", "1/eps"):
        flat = slope = _table("constants", constants, b)
    elif isinstance(constants, tuple) and len(constants) == 2:
        flat, slope = _table("L0", constants[0], b), _table("L1", constants[1], b)
    else:
        raise ValueError(
            f"constants must be a pair (L0, L1) for regime {regime!r}, got {constants!r}"
        )
    if regime == "stochastic":
        values = _stochastic_costs(family, candidates, flat, slope, costs, check_case(case))
        best = int(values.argmin())
        return TauChoice(candidates[best], float(values[best]), candidates, values)
    price = _nice_cost if family == "nice" else _contiguous_cost
    values = np.array([price(tau, flat, slope, costs, regime) for tau in candidates])
    best = int(values.argmin())
    return TauChoice(candidates[best], float(values[best]), candidates, values)


def nice_factor(tau: SupportsIndex, costs: Costs) -> float:
    """Return B(tau) = (b / tau) E[cost(S)] of tau-nice sampling; it never rises with tau.

    Section "tau-nice Sampling": B(tau) = (b / tau) c_ov + sum_j c_j h_j(tau) + sum_j c_j^sharp. The
    quotients of binomials in h_j overflow for large b. Here h_j is the paper's sum
    h_j = sum_{m < j} C(b-m-1, tau-1) / C(b-1, tau-1), the terms by their recursion: every factor
    lies in [0, 1] and nothing cancels.
    """
    b = costs.num_layers
    size = whole_number("tau", tau, remedy="give the number of layers that move", most=b)
    m = np.arange(b - 1)
    terms = np.append(1.0, np.maximum(b - m - size, 0) / (b - m - 1)).cumprod()
    return b / size * costs.overhead + float(costs.layer @ terms.cumsum() + costs.sharp.sum())


def check_blocks(blocks: Iterable[Iterable[int]], num_layers: int) -> tuple[ActiveSet, ...]:
    """Return the blocks as active sets, or raise ValueError if they are not a partition."""
    sets = tuple(active_set("blocks", block, num_layers) for block in blocks)
    counts = np.zeros(num_layers, dtype=np.intp)
    for block in sets:
        counts[list(block)] += 1
    if (counts != 1).any():
        layer = int(np.flatnonzero(counts != 1)[0])
        raise ValueError(
            f"blocks must partition layers 0 to {num_layers - 1}, "
            f"got layer {layer} in {counts[layer]} of them; make them disjoint and complete"
        )
    return sets


def _layer_constants(
    constants: LayerConstants, sets: Sequence[ActiveSet], count: int, regime: Regime
) -> tuple[FloatArray, FloatArray]:
    """Return L0 of every layer in its block, and the constants that drive the probabilities."""
    if isinstance(constants, Smoothness):
        if constants.num_layers != count:
            raise ValueError(
                f"constants must be of {count} layers, got {constants.num_layers}; "
                "measure costs and constants on one model"
            )
        flat = np.sum([constants.constants(0, block) for block in sets], axis=0)
        slope = np.sum([constants.constants(1, block) for block in sets], axis=0)
        slope = flat if regime == "smooth" else slope
    elif regime != "1/eps^2":
        flat = slope = nonnegative("constants", constants, length=count)
    elif isinstance(constants, Sequence | np.ndarray) and len(constants) == 2:
        flat = nonnegative("L0", constants[0], length=count)
        slope = nonnegative("L1", constants[1], length=count)
    else:
        raise ValueError(
            f"constants must be a pair (L0, L1) of vectors for regime '1/eps^2', got {constants!r}"
        )
    if not slope.all():
        layer = int((slope == 0).argmax())
        raise ValueError(
            f"constants must be above 0 in regime {regime!r}, got 0 in layer {layer}; "
            "give it a small positive one"
        )
    return flat, slope


_GROWTHS: dict[str, Callable[[int], float]] = {
    "constant": lambda tau: 1.0,
    "linear": float,
    "sqrt": math.sqrt,
}


def _table(name: str, given: Growth | tuple[Growth, Growth], b: int) -> FloatArray:
    """Return constants as a (b, b) table by layer and tau - 1, warning where they fall with tau."""
    if isinstance(given, str):
        if given not in _GROWTHS:
            raise unknown_name(name, given, _GROWTHS)
        given = _GROWTHS[given]
    if callable(given):
        table = np.tile([float(given(tau)) for tau in range(1, b + 1)], (b, 1))
    else:
        table = numbers(name, given)
    if table.shape != (b, b):
        raise ValueError(f"{name} must be a table of layers by tau, {(b, b)}, got {table.shape}")
    wrong = ~(np.isfinite(table) & (table > 0))
    if wrong.any():
        i, k = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"{name} must be finite and positive, got {table[i, k]} for layer {i} and tau {k + 1}; "
            "estimate it again"
        )
    if (table[:, 1:] < table[:, :-1] * (1.0 - _FALL)).any():
        warnings.warn(
            f"{name} must not fall where more layers move, got a row that falls with tau",
            NonMonotoneWarning,
            stacklevel=3,
        )
    return table


def _nice_cost(tau: int, L0: FloatArray, L1: FloatArray, costs: Costs, regime: Regime) -> float:
    """Return A(tau) B(tau) for this regime."""
    flat, slope = L0[:, tau - 1], L1[:, tau - 1]
    worst = float(slope.max())
    if regime == "1/eps^2":
        return float(((worst / slope) ** 2 * flat).sum()) * nice_factor(tau, costs)
    return (2.0 if regime == "smooth" else 1.0) * worst * nice_factor(tau, costs)


def _stochastic_costs(
    family: TauFamily,
    taus: Sequence[int],
    L0: FloatArray,
    L1: FloatArray,
    costs: Costs,
    case: StochasticCase,
) -> FloatArray:
    """Return the costs of the stochastic regime, to leading order."""
    b, found = costs.num_layers, []
    for tau in taus:
        if family == "partition":
            blocks = contiguous_blocks(b, tau)
            l0, l1 = ({s: _within(s, table, b) for s in blocks} for table in (L0, L1))
            solution = optimal_sets(blocks, Smoothness(l0, l1), costs, "stochastic", case)
            found.append(solution.cost)
            continue
        flat, slope, Q = L0[:, tau - 1], L1[:, tau - 1], tau / b
        # The largest of tau layers is the j-th largest of all where that is the least drawn.
        largest = np.diff(Nice(tau).marginals(b)[0], prepend=0.0) @ np.sort(slope)[::-1]
        means = (np.full(b, Q), Q * flat, Q * slope, Q * flat / slope, np.asarray(largest))
        found.append(float(leading_iterations(case, *means)) * Q * nice_factor(tau, costs))
    return np.array(found)


def _within(block: ActiveSet, table: FloatArray, b: int) -> FloatArray:
    """Return the constants of the layers of a block by its size, 0 outside of it."""
    return np.where(np.isin(np.arange(b), block), table[:, len(block) - 1], 0.0)


def _contiguous_cost(
    tau: int, L0: FloatArray, L1: FloatArray, costs: Costs, regime: Regime
) -> float:
    """Return the cost of contiguous blocks of tau layers with their optimal probabilities."""
    blocks = contiguous_blocks(costs.num_layers, tau)
    size = np.concatenate([np.full(len(block), len(block)) for block in blocks])
    layers = np.arange(costs.num_layers)
    flat, slope = L0[layers, size - 1], L1[layers, size - 1]
    constants = (flat, slope) if regime == "1/eps^2" else slope
    return optimal_partition(blocks, constants, costs, regime).cost
