"""How long steps take on many accelerators, by the model: its formulas and its laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.theory import (
    H100,
    Collective,
    Machine,
    Spread,
    StepCosts,
    Weight,
    collective_seconds,
    step_seconds,
    step_traffic,
)

BLOCKS, WIDTH, TOKENS = 4, 64, 1000.0
WEIGHTS = [
    Weight((100, WIDTH), 0),
    *(Weight((WIDTH, WIDTH), 1 + i // 2, 1 + i // 2, "whole") for i in range(2 * BLOCKS)),
    Weight((100, WIDTH), BLOCKS + 1),
]
EVERY = tuple(range(BLOCKS + 2))
ONES = np.ones(len(EVERY))
PASSES = StepCosts(0.0, ONES, 2 * ONES, 0 * ONES, weight=3 * ONES)
UNIT = Machine(operations=1.0, utilization=1.0, link=450e9, network=50e9)
SPREADS = [Spread(1, 8), Spread(8), Spread(8, 4), Spread(64), Spread(1, 64)]


def call(kind: Any, size: int, among: Any = "shards") -> Collective:
    return Collective(kind, "backward", 0, among, np.array([size]), size)


@pytest.mark.parametrize(
    ("kind", "spread", "bandwidth", "factor"),
    [
        ("all-gather", Spread(8), 450e9, 7),
        ("all-gather", Spread(64), 400e9, 63),
        ("reduce-scatter", Spread(8), 450e9, 7 / 8),
        ("reduce-scatter", Spread(64), 400e9, 63 / 64),
        ("all-to-all", Spread(8), 450e9, 7 / 8),
        ("all-to-all", Spread(64), 50e9, 56 / 64),
    ],
)
def test_many_bytes_take_the_bytes_of_nccl_tests_over_the_bandwidth(
    kind: str, spread: Spread, bandwidth: float, factor: float
) -> None:
    size = 10**13
    found = collective_seconds(call(kind, size), spread, H100)
    assert math.isclose(found, factor * size / bandwidth, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("spread", "bandwidth"), [(Spread(1, 8), 450e9), (Spread(1, 64), 400e9), (Spread(8, 64), 50e9)]
)
def test_replicas_have_the_network_ports_of_their_node_to_share(
    spread: Spread, bandwidth: float
) -> None:
    size, n = 10**13, spread.replicas
    found = collective_seconds(call("all-reduce", size, "replicas"), spread, H100)
    assert math.isclose(found, 2 * (n - 1) / n * size / bandwidth, rel_tol=1e-3)


def test_latency_grows_with_ranks_in_a_ring_and_with_their_logarithm_in_a_tree() -> None:
    """By NCCL's LL protocol: base + hops inside of a node + hops over the network."""
    on_one_node = collective_seconds(call("all-gather", 0), Spread(8), H100)
    on_many = collective_seconds(call("all-gather", 0), Spread(512), H100)
    by_tree = collective_seconds(call("all-reduce", 0, "replicas"), Spread(1, 512), H100)
    assert math.isclose(on_one_node, 1e-6 * (6.6 + 7 * 0.6))
    assert math.isclose(on_many, 1e-6 * (6.6 + 448 * 0.6 + 63 * 2.7))
    assert math.isclose(by_tree, 1e-6 * (6.8 + 2 * (7 * 0.6 + 6 * 5.0)))


def test_one_rank_has_nobody_to_wait_for() -> None:
    assert collective_seconds(call("all-reduce", 10**9), Spread(), H100) == 0.0


def test_operations_are_those_of_forward_backward_and_newton_schulz() -> None:
    found = step_seconds(WEIGHTS, PASSES, Spread(), UNIT, [EVERY], TOKENS)
    assert found.forward == TOKENS * 6
    assert found.backward == TOKENS * 6 * (2 + 3)
    assert found.orthogonalize == 8 * 5 * (4 + 2) * WIDTH**3
    assert found.apart == found.overlapped
    cut = step_seconds(WEIGHTS, PASSES, Spread(), UNIT, [(3, 5)], TOKENS)
    assert cut.backward == TOKENS * (3 * 2 + 2 * 3)
    parts = step_seconds(WEIGHTS, PASSES, Spread(), UNIT, [EVERY, (5,), (5,), (5,)], TOKENS)
    assert parts.forward == found.forward
    assert parts.backward == TOKENS * (6 * 5 + 3 * 5) / 4


@pytest.mark.parametrize(("shards", "matrices"), [(1, 8), (2, 4), (8, 1), (64, 1)])
def test_more_ranks_orthogonalise_faster_until_each_has_one_matrix(
    shards: int, matrices: int
) -> None:
    found = step_seconds(WEIGHTS, PASSES, Spread(shards), UNIT, [EVERY], TOKENS)
    assert found.orthogonalize == matrices * 5 * 6 * WIDTH**3


def test_turns_halve_the_busiest_rank_unless_it_has_a_single_matrix() -> None:
    half = {1, 2, 3, 4}

    def busiest(shards: int, waiting: set[int]) -> float:
        spread = Spread(shards)
        return step_seconds(
            WEIGHTS, PASSES, spread, UNIT, [EVERY], TOKENS, waiting=waiting
        ).orthogonalize

    assert busiest(4, half) == busiest(4, set()) / 2
    assert busiest(8, half) == busiest(8, set())


@pytest.mark.parametrize("spread", SPREADS, ids=repr)
@given(tokens=st.floats(1.0, 1e12), cutoff=st.integers(0, BLOCKS + 1))
def test_the_whole_step_lies_between_its_extremes(
    spread: Spread, tokens: float, cutoff: int
) -> None:
    active = EVERY[cutoff:]
    found = step_seconds(WEIGHTS, PASSES, spread, H100, [active], tokens)
    computing = found.forward + found.backward + found.orthogonalize
    assert max(computing, found.exchange) <= found.overlapped <= found.apart
    everything = step_seconds(WEIGHTS, PASSES, spread, H100, [EVERY], tokens)
    assert found.overlapped <= everything.overlapped * (1 + 1e-9)
    assert found.apart <= everything.apart * (1 + 1e-9)


@pytest.mark.parametrize("spread", SPREADS, ids=repr)
def test_time_of_communication_is_that_of_the_collectives(spread: Spread) -> None:
    sets = [EVERY, (4, 5)]
    calls = step_traffic(WEIGHTS, spread, sets, reduce_each_part=True)
    total = sum(collective_seconds(each, spread, H100) for each in calls)
    found = step_seconds(WEIGHTS, PASSES, spread, H100, sets, TOKENS, reduce_each_part=True)
    assert math.isclose(found.gather + found.reduce + found.exchange, total)


def test_a_machine_without_a_network_is_refused() -> None:
    with pytest.raises(ValueError, match="network must be above 0, got 0; give what"):
        Machine(operations=1.0, utilization=1.0, link=1.0, network=0.0)
