"""Full updates against other distributions, and the paper's two examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dropmuon import samplers
from dropmuon.theory.comparisons import (
    Comparison,
    against_full,
    grouped_by_cost,
    grouped_evenly,
    relative_cost,
    transformer_exact,
    transformer_limit,
)
from dropmuon.theory.complexity import Regime, iterations_generalized, iterations_smooth
from dropmuon.theory.costs import Costs, expected_cost, tail_costs
from dropmuon.theory.partitions import optimal_partition, same_position_blocks
from dropmuon.theory.smoothness import Smoothness

positive = st.floats(0.1, 10.0)
BLOCKS = ((0, 3), (1, 4), (2, 5))
FULL = tuple(range(6))


@st.composite
def costs_of(draw: st.DrawFn, b: int) -> Costs:
    vectors = arrays(np.float64, b, elements=positive)
    return Costs(draw(positive), draw(vectors), draw(vectors))


@st.composite
def block_smoothness(draw: st.DrawFn) -> Smoothness:
    """Constants of the blocks, and larger ones of the full set."""
    vectors = arrays(np.float64, 6, elements=positive)
    tables: list[dict[tuple[int, ...], np.ndarray]] = []
    for _ in range(2):
        blocks: dict[tuple[int, ...], np.ndarray] = {B: draw(vectors) for B in BLOCKS}
        tables.append({**blocks, FULL: sum(blocks.values()) + draw(vectors)})
    return Smoothness(*tables)


@given(costs=costs_of(6), smoothness=block_smoothness())
def test_optimal_partition_is_the_left_side(costs: Costs, smoothness: Smoothness) -> None:
    """Sum_k d_k max L0_{i,B_k}, at p_k proportional to the block's largest constant."""
    worst = np.array([smoothness.constants(0, B).max() for B in BLOCKS])
    sampler = samplers.Partition(BLOCKS, worst / worst.sum())
    sides = grouped_by_cost(costs, smoothness, BLOCKS)
    compared = against_full(sampler, costs, smoothness)
    assert compared.sampled == pytest.approx(2 * sides.sampled, rel=1e-9)
    assert compared.full == pytest.approx(2 * sides.full, rel=1e-9)
    assert compared.ratio == pytest.approx(sides.ratio, rel=1e-9)


@given(smoothness=block_smoothness(), data=st.data())
def test_grouping_by_cost_is_the_papers_inequality(
    smoothness: Smoothness, data: st.DataObject
) -> None:
    """Eq. partition_better_explicit, written out for costs that agree within blocks."""
    block = data.draw(costs_of(3))
    c, sharp = np.tile(block.layer, 2), np.tile(block.sharp, 2)
    sides = grouped_by_cost(Costs(block.overhead, c, sharp), smoothness, BLOCKS)
    left = right = 0.0
    for k, B in enumerate(BLOCKS):
        tail = sum(c[j] for j in range(min(B), 6))
        most = max(smoothness.l0(i, B) for i in B)
        left += most * (block.overhead + tail + len(B) * block.sharp[k])
        right += len(B) * (block.layer[k] + block.sharp[k])
    most = max(smoothness.l0(i, FULL) for i in FULL)
    assert sides.sampled == pytest.approx(left, rel=1e-9)
    assert sides.full == pytest.approx(most * (block.overhead + right), rel=1e-9)
    assert sides.better == (sides.sampled <= sides.full)


@given(costs=costs_of(6), blocks=st.permutations(range(6)), m=st.integers(1, 6))
def test_evenly_conditioned_blocks_always_pay(costs: Costs, blocks: list[int], m: int) -> None:
    sides = grouped_evenly(costs, [blocks[k::m] for k in range(m)])
    assert sides.sampled <= sides.full * (1 + 1e-12)


def test_evenly_conditioned_blocks_are_the_general_inequality_at_one_mth() -> None:
    costs = Costs(2.0, np.arange(1.0, 7.0), np.arange(6.0, 0.0, -1.0))
    smoothness = Smoothness({**{B: np.full(6, 1.0) for B in BLOCKS}, FULL: np.full(6, 3.0)})
    general, even = grouped_by_cost(costs, smoothness, BLOCKS), grouped_evenly(costs, BLOCKS)
    assert general.sampled == pytest.approx(3.0 * (costs.overhead + even.sampled))
    assert general.full == pytest.approx(3.0 * (costs.overhead + even.full))


@given(block=costs_of(3), T=st.integers(1, 5), constants=arrays(np.float64, 3, elements=positive))
def test_transformer_blocks_are_a_partition_like_any(
    block: Costs, T: int, constants: np.ndarray
) -> None:
    """Eq. compare_exact equals eq. partition_better_explicit on the unrolled network."""
    most, b = constants.sum(), 3 * T
    costs = Costs(block.overhead, np.tile(block.layer, T), np.tile(block.sharp, T))
    blocks = same_position_blocks(T, 3)
    table = {B: np.full(b, c) for B, c in zip(blocks, constants, strict=True)}
    table[tuple(range(b))] = np.full(b, most)
    general = grouped_by_cost(costs, Smoothness(table), blocks)
    exact = transformer_exact(T, block, constants, most)
    assert exact.sampled == pytest.approx(general.sampled, rel=1e-9)
    assert exact.full == pytest.approx(general.full, rel=1e-9)


@given(block=costs_of(4), constants=arrays(np.float64, 4, elements=positive))
def test_many_transformer_blocks_approach_the_limit(block: Costs, constants: np.ndarray) -> None:
    """Eq. compare_asymp is eq. compare_exact over T, and the difference falls as 1/T."""
    most, T = constants.max(), 10**7
    exact = transformer_exact(T, block, constants, most)
    limit = transformer_limit(block, constants, most)
    assert exact.sampled / T == pytest.approx(limit.sampled, rel=1e-4)
    assert exact.full / T == pytest.approx(limit.full, rel=1e-4)


@given(costs=costs_of(6), smoothness=block_smoothness())
def test_optimal_partitions_state_their_own_cost(costs: Costs, smoothness: Smoothness) -> None:
    regimes: tuple[Regime, ...] = ("smooth", "1/eps", "1/eps^2")
    for regime in regimes:
        best = optimal_partition(BLOCKS, smoothness, costs, regime)
        sampler = samplers.Partition(best.blocks, best.probabilities)
        cost = relative_cost(sampler, costs, smoothness, regime)
        assert cost == pytest.approx(best.cost, rel=1e-9)


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.Full(),
        samplers.Progressive(),
        samplers.Nice(2),
        samplers.Submodel(2),
        samplers.Partition([(0, 2), (1, 3)]),
        samplers.Serial(),
        samplers.Arbitrary({(0, 1): 0.5, (1, 2, 3): 0.5}),
    ],
    ids=repr,
)
def test_relative_cost_is_iterations_times_cost(sampler: samplers.Sampler) -> None:
    costs = Costs(1.0, [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    smoothness = Smoothness.separable([4.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    gap, eps = 1e6, 1e-3
    per_step = expected_cost(sampler, costs)
    smooth = iterations_smooth(sampler, smoothness, gap, eps) * per_step
    assert relative_cost(sampler, costs, smoothness) * gap / eps == pytest.approx(smooth, rel=1e-6)
    K = iterations_generalized(sampler, smoothness, gap, eps)
    linear = relative_cost(sampler, costs, smoothness, "1/eps") * 2 * gap / eps
    quadratic = relative_cost(sampler, costs, smoothness, "1/eps^2") * 2 * gap / eps**2
    assert linear == pytest.approx(K.linear * per_step)
    assert quadratic == pytest.approx(K.quadratic * per_step)


def test_full_updates_cost_as_much_as_full_updates() -> None:
    costs = Costs(1.0, [1.0, 2.0], [3.0, 4.0])
    smoothness = Smoothness.separable([5.0, 2.0], [1.0, 2.0])
    compared = against_full(samplers.Full(), costs, smoothness)
    assert compared.ratio == 1.0
    assert compared.better
    assert compared.full == pytest.approx(2 * 5.0 * tail_costs(costs)[0])


def test_progressive_training_pays_unless_the_first_layer_is_the_worst() -> None:
    """Theorem "rpt_p1", at one distribution on each side of the condition."""
    costs = Costs(0.0, [1.0, 1.0], [1.0, 1.0])
    sampler = samplers.Progressive([0.5, 0.5])
    assert against_full(sampler, costs, Smoothness.separable([1.0, 2.0])).ratio == 0.75
    assert against_full(sampler, costs, Smoothness.separable([2.0, 1.0])).ratio == 1.5


def test_free_full_updates_have_no_finite_ratio() -> None:
    """Where every constant is 0, or the limit leaves nothing to pay for."""
    free, flat = Costs(1.0, [0.0], [0.0]), Smoothness.separable([0.0])
    for compared in (
        grouped_evenly(free, [(0,)]),
        grouped_by_cost(free, flat, [(0,)]),
        against_full(samplers.Full(), free, flat),
        transformer_limit(free, [1.0], 1.0),
    ):
        assert (compared.sampled, compared.full, compared.better) == (0.0, 0.0, True)
        assert np.isnan(compared.ratio)
    assert Comparison(sampled=1.0, full=0.0).ratio == np.inf


def test_bad_input_is_refused() -> None:
    costs, smoothness = Costs(1.0, [1.0, 1.0], [1.0, 1.0]), Smoothness.separable([1.0, 1.0])
    with pytest.raises(ValueError, match="costs and smoothness must be of the same layers, got 2"):
        relative_cost(samplers.Full(), costs, Smoothness.separable([1.0]))
    with pytest.raises(ValueError, match="regime must be one of"):
        relative_cost(samplers.Full(), costs, smoothness, "smoth")  # type: ignore[arg-type]
    for blocks in ([(0,)], [(0, 1), (1,)]):
        with pytest.raises(ValueError, match="blocks must partition layers 0 to 1, got layer 1 in"):
            grouped_by_cost(costs, smoothness, blocks)
    with pytest.raises(ValueError, match="at least 1"):
        transformer_exact(0, costs, [1.0, 1.0], 1.0)
    with pytest.raises(ValueError, match="position_constants must have 2 entries, got 1"):
        transformer_limit(costs, [1.0], 1.0)
    with pytest.raises(ValueError, match="full_constant must be finite and above 0, got nan"):
        transformer_limit(costs, [1.0, 1.0], float("nan"))
