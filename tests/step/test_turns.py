"""Turns: the literal algorithm, who moves when and how far, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dropmuon import DropMuon, presets, reference, samplers
from dropmuon.model.roster import Member
from dropmuon.norms import Spectral
from dropmuon.step.rules import Horizon, Sharp
from dropmuon.step.turns import assign_turns
from tests.backward.parted_problem import gradient_of_part, make_model, point, train

MATRICES, VECTORS = 0, 1
"""Where `point` has the weight and the bias of a layer."""


def matrices_moved(model: nn.Sequential, optimizer: DropMuon, k: int) -> list[bool]:
    before = copy.deepcopy(point(model))
    train(model, optimizer, 1, first=k)
    pairs = zip(before, point(model), strict=True)
    return [not torch.equal(old[MATRICES], new[MATRICES]) for old, new in pairs]


@pytest.mark.parametrize("sampler", ["full", "uniform", "shares", "nice"])
@pytest.mark.parametrize(("turns", "parts"), [(2, 1), (3, 1), (2, 3), (4, 2)])
def test_turns_are_the_literal_algorithm(sampler: str, turns: int, parts: int) -> None:
    given = {"shares": samplers.Shares([0.2, 0.5, 0.5, 1.0]), "nice": samplers.Nice(2)}
    for nesterov in (False, True):
        model = make_model()
        optimizer = DropMuon(
            model,
            lr=0.02,
            momentum=0.7,
            nesterov=nesterov,
            weight_decay=0.1,
            sampler=given.get(sampler, sampler),  # type: ignore[arg-type]
            parts=parts,
            turns=turns,
            orthogonalize="svd",
        )
        turn = {m.parameter.data_ptr(): m.turn for m in optimizer.roster.members()}
        start = [[x.clone() for x in layer] for layer in point(model)]
        turn_of = {
            id(x): turn[p.data_ptr()]
            for layer, here in zip(start, point(model), strict=True)
            for x, p in zip(layer, here, strict=True)
        }

        def stretch(x: torch.Tensor, k: int, turn_of: dict = turn_of) -> float:
            own = turn_of[id(x)]
            return 1.0 if own is None or k == 0 else turns * (own == k % turns)

        expected = reference.algorithm_1_in_parts(
            start,
            gradient_of_part(parts),
            train(model, optimizer, 50),
            0.02,
            0.3,
            lambda x: "spectral" if x.ndim == 2 else "euclidean",
            nesterov=nesterov,
            weight_decay=0.1,
            stretch=stretch,
        )
        torch.testing.assert_close(point(model), expected, rtol=1e-9, atol=1e-9)


def test_every_matrix_moves_once_in_a_round_and_vectors_always() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.02, sampler="full", turns=3)
    train(model, optimizer, 1)
    rounds = [matrices_moved(model, optimizer, k) for k in range(1, 7)]
    assert [sum(moved) for moved in zip(*rounds, strict=True)] == [2, 2, 2, 2]
    assert rounds[:3] == rounds[3:]
    assert all(
        member.turn is None for member in optimizer.roster.members() if member.parameter.ndim == 1
    )


def test_a_matrix_that_waits_keeps_every_bit_while_its_momentum_follows() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.02, sampler="full", turns=4, weight_decay=0.1)
    train(model, optimizer, 1)
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    momenta = [optimizer.state[weight]["momentum_buffer"].clone() for weight in weights]
    moved = matrices_moved(model, optimizer, 1)
    assert sum(moved) == 1
    for weight, old in zip(weights, momenta, strict=True):
        assert not torch.equal(optimizer.state[weight]["momentum_buffer"], old)


def test_a_turn_is_as_long_as_the_steps_it_stands_for() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.02, sampler="full", turns=4, orthogonalize="svd")
    train(model, optimizer, 1)
    before = copy.deepcopy(point(model))
    train(model, optimizer, 1, first=1)
    steps = [new[0] - old[0] for new, old in zip(point(model), before, strict=True)]
    lengths = sorted(float(torch.linalg.matrix_norm(step, ord=2)) for step in steps)
    assert lengths == pytest.approx([0, 0, 0, 0.08])


def test_one_turn_is_every_step_bit_for_bit() -> None:
    models = [make_model(), make_model()]
    train(models[0], DropMuon(models[0], lr=0.05), 12)
    train(models[1], DropMuon(models[1], lr=0.05, turns=1), 12)
    torch.testing.assert_close(point(models[0]), point(models[1]), rtol=0, atol=0)


def test_a_resumed_run_with_turns_equals_an_unbroken_one() -> None:
    unbroken = make_model()
    settings = {"lr": 0.02, "turns": 3, "seed": 5, "sampler": "uniform", "parts": 2}
    train(unbroken, DropMuon(unbroken, **settings), 11)  # type: ignore[arg-type]
    first, second = make_model(), make_model()
    optimizer = DropMuon(first, **settings)  # type: ignore[arg-type]
    train(first, optimizer, 5)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    second.load_state_dict(saved[0])
    resumed = DropMuon(second, **settings)  # type: ignore[arg-type]
    resumed.load_state_dict(saved[1])
    train(second, resumed, 6, first=5)
    torch.testing.assert_close(point(unbroken), point(second), rtol=0, atol=0)


@given(
    shapes=st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=1, max_size=12),
    turns=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
)
def test_groups_differ_by_at_most_the_cost_of_one_matrix(
    shapes: list[tuple[int, int]], turns: int, seed: int
) -> None:
    members = [Member(str(i), torch.empty(shape)) for i, shape in enumerate(shapes)]
    for member in members:
        member.norm = Spectral()
    assign_turns(members, turns, seed)
    if turns == 1:
        assert all(member.turn is None for member in members)
        return
    costs = [min(shape) ** 2 * max(shape) for shape in shapes]
    totals = [
        sum(cost for cost, member in zip(costs, members, strict=True) if member.turn == turn)
        for turn in range(turns)
    ]
    assert max(totals) - min(totals) <= max(costs)


def test_the_order_of_turns_depends_on_the_seed() -> None:
    orders = set()
    for seed in range(20):
        optimizer = DropMuon(make_model(), turns=4, seed=seed)
        orders.add(tuple(member.turn for member in optimizer.roster.members()))
    assert len(orders) > 3


def test_parameters_on_adamw_take_no_turns() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = presets.muon(model, turns=2)
    turns = {member.name: member.turn for member in optimizer.roster.members()}
    assert {name for name, turn in turns.items() if turn is not None} == {"1.weight", "2.weight"}
    assert {turns["1.weight"], turns["2.weight"]} == {0, 1}
    assert "matrices move in one of 2 turns" in optimizer.describe()


def test_turns_go_with_a_horizon_but_not_with_rules_that_measure_gradients() -> None:
    DropMuon(make_model(), 1.0, turns=2, step_rule=Horizon(10))
    with pytest.raises(ValueError, match=r"turns=2 needs steps of constant radius, but Sharp\(\)"):
        DropMuon(make_model(), turns=2, step_rule=Sharp())


@pytest.mark.parametrize("turns", [0, -1, 1.5, "two", None, True])
def test_turns_must_be_a_whole_number(turns: object) -> None:
    with pytest.raises(ValueError, match="turns must be a whole number of at least 1"):
        DropMuon(make_model(), turns=turns)  # type: ignore[arg-type]
