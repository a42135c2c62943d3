"""Parts: the literal algorithm, and which sets are drawn."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, norms, reference, samplers
from tests.backward.parted_problem import (
    LAYERS,
    accumulate,
    gradient_of_part,
    make_batch,
    make_model,
    point,
    train,
)
from tests.fixed_set import Always

SAMPLERS = {
    "full": samplers.Full(),
    "uniform": samplers.Progressive(),
    "shares": samplers.Shares([0.2, 0.5, 0.5, 1.0]),
    "nice": samplers.Nice(2),
    "submodel": samplers.Submodel(2),
    "partition": samplers.Partition([(0, 2), (1, 3)]),
    "serial": samplers.Serial(),
    "random-subset": samplers.RandomSubset(),
    "arbitrary": samplers.Arbitrary({(0, 3): 0.2, (1,): 0.5, (1, 2, 3): 0.3}),
}
NORMS = ["spectral", "euclidean", "sign", "row-wise", "column-wise"]


def norm_of(norm: str, x: Tensor) -> str:
    return norm if x.ndim >= 2 or norm == "sign" else "euclidean"


# The algorithm


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_optimizer_is_the_literal_algorithm(sampler: str, norm: str, m: int) -> None:
    for nesterov in (False, True):
        model = make_model()
        optimizer = DropMuon(
            model,
            lr=0.02,
            momentum=0.7,
            nesterov=nesterov,
            sampler=SAMPLERS[sampler],
            parts=m,
            policy=lambda member: norm_of(norm, member.parameter),
            orthogonalize="svd",
            seed=3,
        )
        seen = train(model, optimizer, 50)
        expected = reference.algorithm_1_in_parts(
            point(make_model()),
            gradient_of_part(m),
            seen,
            0.02,
            0.3,
            lambda x: norm_of(norm, x),
            nesterov=nesterov,
        )
        torch.testing.assert_close(point(model), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("settings", [{"full_start": "momentum"}, {"truncate": "refresh"}], ids=str)
@pytest.mark.parametrize("sampler", ["serial", "nice", "uniform"])
def test_momenta_follow_all_parts_where_gradients_are_there(
    sampler: str, settings: dict[str, Any]
) -> None:
    model, m, steps = make_model(), 2, 12
    optimizer = DropMuon(
        model,
        lr=0.02,
        momentum=0.7,
        sampler=SAMPLERS[sampler],
        parts=m,
        policy=lambda member: norm_of("spectral", member.parameter),
        orthogonalize="svd",
        seed=3,
        **settings,
    )
    S = [optimizer.draws.sets_at(k, len(optimizer.layers), m) for k in range(steps)]
    train(model, optimizer, steps)
    starts_only = "full_start" in settings
    expected = reference.algorithm_1_in_parts(
        point(make_model()),
        gradient_of_part(m),
        S,
        0.02,
        0.3,
        lambda x: norm_of("spectral", x),
        refresh=lambda k: k == 0 or not starts_only,
    )
    torch.testing.assert_close(point(model), expected, rtol=1e-9, atol=1e-9)


def test_without_truncation_layers_that_move_follow_all_parts() -> None:
    ours, theirs = make_model(), make_model()
    settings: dict[str, Any] = {"lr": 0.05, "seed": 3, "full_start": False}
    drawn = DropMuon(ours, sampler=samplers.Serial(), parts=2, truncate=False, **settings)
    by_hand = DropMuon(theirs, sampler="full", **settings)
    for k in range(10):
        sets = drawn.draws.sets_at(k, len(drawn.layers), 2)
        by_hand.activate({layer for each in sets for layer in each})
        for model, optimizer in ((ours, drawn), (theirs, by_hand)):
            accumulate(model, optimizer, k, 2)
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(point(ours), point(theirs), rtol=0, atol=0)


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_full_sets_in_parts_are_plain_accumulation(m: int) -> None:
    ours, theirs = make_model(), make_model()
    in_parts = DropMuon(ours, lr=0.05, sampler="full", parts=m)
    plain = DropMuon(theirs, lr=0.05, sampler="full")
    for k in range(10):
        for model, optimizer in ((ours, in_parts), (theirs, plain)):
            accumulate(model, optimizer, k, m)
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(point(ours), point(theirs), rtol=0, atol=0)


def test_one_part_is_the_paper_bit_for_bit() -> None:
    models = [make_model(), make_model()]
    given: list[dict[str, Any]] = [{}, {"parts": 1}]
    for model, settings in zip(models, given, strict=True):
        train(model, DropMuon(model, lr=0.05, **settings), 12)
    torch.testing.assert_close(point(models[0]), point(models[1]), rtol=0, atol=0)


def test_a_layer_active_in_no_part_keeps_every_bit() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.05, sampler=Always((1, 3)), parts=3, weight_decay=0.1)
    train(model, optimizer, 1)
    before = copy.deepcopy((point(model), optimizer.state_dict()["state"]))
    train(model, optimizer, 3, first=1)
    after = point(model), optimizer.state_dict()["state"]
    for layer in range(LAYERS):
        same = all(map(torch.equal, before[0][layer], after[0][layer]))
        assert same == (layer in (0, 2))
    for number in range(8):
        same = torch.equal(*(each[1][number]["momentum_buffer"] for each in (before, after)))
        assert same == (number // 2 in (0, 2))


# Which sets


@given(
    seed=st.integers(0, 2**32),
    m=st.integers(2, 9),
    weights=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
)
def test_shares_are_marginals_as_exactly_as_the_number_of_parts_allows(
    seed: int, m: int, weights: list[float]
) -> None:
    sampler = samplers.Progressive(np.array(weights) / sum(weights))
    b = len(weights)
    sets = sampler.sample_parts(b, m, np.random.default_rng(seed))
    Q = sampler.marginals(b)[1]
    for layer in range(b):
        count = sum(layer in each for each in sets)
        assert abs(count - m * Q[layer]) < 1 + 1e-9


def test_four_parts_over_four_cutoffs_are_one_each_in_an_order_that_changes() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.01, parts=4)
    seen = train(model, optimizer, 20)[1:]
    assert all(sorted(len(each) for each in sets) == [1, 2, 3, 4] for sets in seen)
    assert len({tuple(sets) for sets in seen}) > 5


def test_over_many_steps_parts_have_the_marginals_of_the_sampler() -> None:
    for sampler in SAMPLERS.values():
        rng = np.random.default_rng(0)
        count = np.zeros(LAYERS)
        for _ in range(2000):
            for active in sampler.sample_parts(LAYERS, 3, rng):
                count[list(active)] += 1
        expected = sampler.marginals(LAYERS)[1]
        if isinstance(sampler, samplers.Shares):
            expected = np.array(sampler.counts(3)) / 3
        np.testing.assert_allclose(count / 6000, expected, atol=0.035)


@pytest.mark.parametrize(
    ("shares", "m", "counts"),
    [
        ([0.25, 0.5, 1.0], 4, (1, 2, 4)),
        ([0.01, 0.3, 1.0], 4, (1, 1, 4)),
        ([0.5, 0.5, 1.0], 2, (1, 1, 2)),
        ([0.4, 0.9, 1.0], 3, (1, 3, 3)),
        ([1.0, 1.0], 5, (5, 5)),
    ],
)
def test_shares_are_rounded_to_the_nearest_number_of_parts(
    shares: list[float], m: int, counts: tuple[int, ...]
) -> None:
    sampler = samplers.Shares(shares)
    assert sampler.counts(m) == counts
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in shares])
    optimizer = DropMuon(model, sampler=sampler, parts=m)
    for _ in range(3):
        for _ in range(m):
            model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.shares == tuple(count / m for count in counts)


@pytest.mark.parametrize("m", [1, 3])
def test_the_active_sets_of_a_step_are_known_before_its_first_part(m: int) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.02, parts=m, sampler=samplers.Nice(2), seed=1)
    everything = tuple(range(LAYERS))
    assert optimizer.active_sets == (everything,) * m
    for k in range(6):
        planned = optimizer.active_sets
        assert train(model, optimizer, 1, first=k) == [list(planned)]
    optimizer.activate([1, 2])
    assert optimizer.active_sets == ((1, 2),) * m


def test_a_description_tells_how_shares_were_rounded() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    rounded = DropMuon(model, sampler=samplers.Shares([0.3, 0.5, 1.0]), parts=4)
    assert str(rounded).splitlines()[0] == (
        "DropMuon: 3 layers, sampler Shares([0.3, 0.5, 1.0]); active in 1, 2, 4 of 4 parts"
    )
    uniform = DropMuon(model, parts=4)
    assert "active in 1.33, 2.67, 4 of 4 parts" in str(uniform)


def test_with_one_part_shares_are_probabilities() -> None:
    sampler = samplers.Shares([0.25, 0.5, 1.0])
    assert sampler.marginals(3)[1].tolist() == [0.25, 0.5, 1.0]


# Backward really stops in each part


def test_the_operations_of_each_part_are_those_of_a_hand_placed_detach() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.01, parts=4)
    train(model, optimizer, 1)
    x, y = make_batch(1)
    for some, labels in zip(x.chunk(4), y.chunk(4), strict=True):
        cutoff = optimizer.active[0]
        with FlopCounterMode(display=False) as ours:
            F.cross_entropy(model(some), labels).backward()
        other = make_model()
        with FlopCounterMode(display=False) as oracle:
            with torch.no_grad():
                hidden = other[: 2 * cutoff](some)
            F.cross_entropy(other[2 * cutoff :](hidden), labels).backward()
        assert ours.get_total_flops() == oracle.get_total_flops()


def test_parts_use_norms_of_their_own() -> None:
    """AdamW beside norms, in the same parts."""
    model = make_model()
    optimizer = DropMuon(
        model,
        lr=0.05,
        parts=4,
        policy=lambda member: norms.AdamW() if member.parameter.ndim == 1 else "spectral",
    )
    before = point(copy.deepcopy(model))
    train(model, optimizer, 3)
    for old, new in zip(before, point(model), strict=True):
        assert not any(map(torch.equal, old, new))
