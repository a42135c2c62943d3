"""Which sets are measured, in which order, and how many."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.planning.bounds.probe import planned_sets, position_blocks, windows
from dropmuon.planning.timing import bisected
from dropmuon.theory import contiguous_blocks, same_position_blocks
from tests.planning.synthetic_plans import layer_names, transformer_layers


@given(st.integers(1, 120))
def test_sets_are_distinct_suffixes_first_and_bounded(b):
    found = planned_sets(layer_names(b))
    assert len(set(found)) == len(found)
    assert found[0] == tuple(range(b))
    assert [active[0] for active in found[:b]] == bisected(b)
    assert all(active[-1] == b - 1 for active in found[:b])
    blocks = {block for tau in (1, 2, 4, 8, 16, 32, 64) if tau < b for block in blocks_of(b, tau)}
    assert blocks <= set(found)
    assert len(set(found) - blocks) <= b + 48


def blocks_of(b: int, tau: int) -> set[tuple[int, ...]]:
    return set(contiguous_blocks(b, tau))


@given(st.integers(1, 60))
def test_bisected_cutoffs_are_all_cutoffs_and_the_ends_come_first(b):
    found = bisected(b)
    assert sorted(found) == list(range(b))
    assert found[:2] == [0, b - 1][: len(found)]


def test_small_models_have_all_their_sets_measured():
    found = planned_sets(layer_names(5))
    every = [c for size in range(1, 6) for c in combinations(range(5), size)]
    assert set(found) == set(every)


def test_a_family_is_measured_as_a_whole_or_not_at_all():
    b = 12
    found = set(planned_sets(layer_names(b)))
    assert set(windows(b, 2)) <= found
    assert set(windows(b, 4)) <= found
    pairs = set(combinations(range(b), 2))
    assert pairs & found == set(windows(b, 2))


def test_layers_of_one_position_go_together_and_the_others_stay_alone():
    found = position_blocks(transformer_layers(3))
    inner = [tuple(i + 1 for i in block) for block in same_position_blocks(3, 2)]
    assert found == ((0,), *inner, (7,))
    assert set(found) <= set(planned_sets(transformer_layers(3)))


@pytest.mark.parametrize(
    "layers",
    [
        ["0", "2", "4"],
        ["embedding", "head"],
        ["blocks.0", "blocks.1", "head"],
        ["conv1", "conv2", "conv3", "fc1", "fc2"],
        ["blocks.0.attention", "blocks.0.mlp"],
    ],
)
def test_without_two_positions_that_repeat_alike_there_are_no_blocks(layers):
    assert position_blocks(layers) == ()


def test_only_the_first_number_counts_the_blocks():
    layers = [f"h.{k}.fc{j}" for k in range(2) for j in (1, 2)]
    assert position_blocks(layers) == ((0, 2), (1, 3))
