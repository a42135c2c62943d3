"""The arithmetic of a step against plain formulas, and what a flag of not-finite undoes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dropmuon.step.kernels import adamw, all_finite, move, start_momentum, update_momentum
from tests.step.small_steps import same_bits

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=4)
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
SEEDS = st.integers(0, 2**31)
SHARES = st.floats(0.0, 0.999)
FLAGS = st.lists(st.booleans(), min_size=4, max_size=4)


def tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def clones(given: list[Tensor]) -> list[Tensor]:
    return [x.clone() for x in given]


def flags_of(flags: list[bool], like: list[Tensor]) -> list[Tensor]:
    return [torch.tensor(flag) for flag in flags[: len(like)]]


def spoiled(gradients: list[Tensor], flags: list[bool]) -> list[Tensor]:
    """NaN and infinities in every gradient whose flag is false."""
    bad = []
    for g, ok in zip(gradients, flags, strict=False):
        other = g.clone()
        if not ok and g.numel():
            other.view(-1)[0] = float("nan")
            other.view(-1)[-1] = float("inf")
        bad.append(other)
    return bad


def assert_near(ours: list[Tensor], exact: list[Tensor], dtype: torch.dtype) -> None:
    """Within a few roundings of values of size about ten, computed in float64."""
    eps = torch.finfo(dtype).eps
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=8 * eps, atol=32 * eps)


def wide(given: list[Tensor]) -> list[Tensor]:
    return [x.to(torch.float64, copy=True) for x in given]


# Momentum


@given(SHAPES, DTYPES, SEEDS)
def test_momentum_starts_at_the_gradient(shapes: list, dtype: torch.dtype, seed: int) -> None:
    momenta, gradients = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    start_momentum(momenta, gradients)
    assert all(same_bits(m, g) for m, g in zip(momenta, gradients, strict=True))
    for m in momenta:
        m.fill_(9.0)
    assert not any((g == 9.0).any() for g in gradients), "a copy, not a view"


@given(SHAPES, DTYPES, SEEDS, SHARES, st.booleans())
def test_momentum_and_direction_follow_the_formula(
    shapes: list, dtype: torch.dtype, seed: int, momentum: float, nesterov: bool
) -> None:
    momenta, gradients = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    old, kept_gradients = wide(momenta), clones(gradients)
    along = update_momentum(momenta, gradients, momentum=momentum, nesterov=nesterov)
    new = [momentum * m + (1 - momentum) * g.double() for m, g in zip(old, gradients, strict=True)]
    look = [(1 - momentum) * g.double() + momentum * m for m, g in zip(new, gradients, strict=True)]
    assert_near(momenta, new, dtype)
    assert_near(along, look if nesterov else new, dtype)
    assert all(same_bits(a, b) for a, b in zip(gradients, kept_gradients, strict=True))


@given(SHAPES, DTYPES, SEEDS, SHARES, st.booleans(), FLAGS)
def test_a_false_flag_keeps_momentum_and_a_true_one_changes_nothing(
    shapes: list,
    dtype: torch.dtype,
    seed: int,
    momentum: float,
    nesterov: bool,
    flags: list[bool],
) -> None:
    old, gradients = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    plain, flagged = clones(old), clones(old)
    rule: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov}
    expected = update_momentum(plain, gradients, **rule)
    along = update_momentum(flagged, spoiled(gradients, flags), moving=flags_of(flags, old), **rule)
    for i, ok in enumerate(flags[: len(old)]):
        if ok:
            assert same_bits(flagged[i], plain[i])
            assert same_bits(along[i], expected[i])
        else:
            assert same_bits(flagged[i], old[i])
            assert torch.isfinite(along[i]).all()


# Moving


LENGTHS = st.one_of(
    st.floats(0.0, 2.0),
    st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4),
    st.lists(st.floats(0.0, 2.0).map(partial(torch.tensor)), min_size=4, max_size=4),
)


@given(SHAPES, DTYPES, SEEDS, LENGTHS, st.floats(0.0, 0.5))
def test_a_move_shrinks_and_descends(
    shapes: list, dtype: torch.dtype, seed: int, lengths: Any, decay: float
) -> None:
    points, directions = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    each = [lengths] * 4 if isinstance(lengths, float) else lengths
    exact = [
        (1 - decay) * x.double() - float(t) * d.double()
        for x, d, t in zip(points, directions, each, strict=False)
    ]
    given_lengths = lengths if isinstance(lengths, float) else lengths[: len(points)]
    move(points, directions, lengths=given_lengths, decay=decay)
    assert_near(points, exact, dtype)


@given(SHAPES, DTYPES, SEEDS, LENGTHS, st.sampled_from([0.0, 0.01, 0.3]), FLAGS)
def test_a_false_flag_keeps_a_parameter_bit_for_bit(
    shapes: list, dtype: torch.dtype, seed: int, lengths: Any, decay: float, flags: list[bool]
) -> None:
    old, directions = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    points = clones(old)
    given_lengths = lengths if isinstance(lengths, float) else lengths[: len(old)]
    finite = flags_of(flags, old)
    move(points, spoiled(directions, flags), lengths=given_lengths, decay=decay, moving=finite)
    for i, ok in enumerate(flags[: len(old)]):
        assert ok or same_bits(points[i], old[i])


@given(SHAPES, DTYPES, SEEDS, LENGTHS, st.sampled_from([0.0, 0.01, 0.3]), FLAGS)
def test_a_true_flag_moves_a_parameter_as_no_flag_does_bit_for_bit(
    shapes: list, dtype: torch.dtype, seed: int, lengths: Any, decay: float, flags: list[bool]
) -> None:
    old, directions = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    rule: dict[str, Any] = {
        "lengths": lengths if isinstance(lengths, float) else lengths[: len(old)],
        "decay": decay,
    }
    plain, flagged = clones(old), clones(old)
    move(plain, directions, **rule)
    move(flagged, spoiled(directions, flags), moving=flags_of(flags, old), **rule)
    for i, ok in enumerate(flags[: len(old)]):
        assert not ok or same_bits(flagged[i], plain[i])


# AdamW


def adam_state(like: list[Tensor], steps: int, seed: int) -> dict[str, Any]:
    shapes, dtype = [tuple(x.shape) for x in like], like[0].dtype
    count = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        "averages": tensors(shapes, dtype, seed) if steps else [torch.zeros_like(x) for x in like],
        "squares": [x.square() for x in tensors(shapes, dtype, seed + 1)]
        if steps
        else [torch.zeros_like(x) for x in like],
        "steps": [torch.tensor(float(steps), dtype=count) for _ in like],
    }


def copied(state: dict[str, Any]) -> dict[str, Any]:
    return {key: clones(value) for key, value in state.items()}


ADAM: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "decay": 0.001}


@given(SHAPES, st.sampled_from([torch.float64, torch.float32]), SEEDS, st.integers(0, 50))
def test_adamw_follows_the_formula(shapes: list, dtype: torch.dtype, seed: int, steps: int) -> None:
    points, gradients = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    state = adam_state(points, steps, seed + 2)
    x, g = wide(points), wide(gradients)
    m = [0.9 * a + 0.1 * b for a, b in zip(wide(state["averages"]), g, strict=True)]
    v = [0.95 * a + 0.05 * b * b for a, b in zip(wide(state["squares"]), g, strict=True)]
    k = steps + 1
    exact = [
        xi * (1 - 0.001) - 0.01 * (mi / (1 - 0.9**k)) / ((vi / (1 - 0.95**k)).sqrt() + 1e-8)
        for xi, mi, vi in zip(x, m, v, strict=True)
    ]
    adamw(points, gradients, **state, **ADAM)
    assert_near(points, exact, dtype)
    assert_near(state["averages"], m, dtype)
    assert_near(state["squares"], v, dtype)
    assert all(float(count) == k for count in state["steps"])


@given(SHAPES, DTYPES, SEEDS, st.integers(0, 50), FLAGS)
def test_a_false_flag_keeps_adamw_and_its_state_bit_for_bit(
    shapes: list, dtype: torch.dtype, seed: int, steps: int, flags: list[bool]
) -> None:
    old, gradients = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    before = adam_state(old, steps, seed + 2)
    points, state = clones(old), copied(before)
    adamw(points, spoiled(gradients, flags), **state, **ADAM, moving=flags_of(flags, old))
    for i, ok in enumerate(flags[: len(old)]):
        assert ok or same_bits(points[i], old[i])
        for key, value in state.items():
            assert ok or same_bits(value[i], before[key][i]), key


@given(SHAPES, DTYPES, SEEDS, st.integers(0, 50), FLAGS)
def test_a_true_flag_steps_adamw_as_no_flag_does_bit_for_bit(
    shapes: list, dtype: torch.dtype, seed: int, steps: int, flags: list[bool]
) -> None:
    old, gradients = tensors(shapes, dtype, seed), tensors(shapes, dtype, seed + 1)
    before = adam_state(old, steps, seed + 2)
    plain, plain_state = clones(old), copied(before)
    points, state = clones(old), copied(before)
    adamw(plain, gradients, **plain_state, **ADAM)
    adamw(points, spoiled(gradients, flags), **state, **ADAM, moving=flags_of(flags, old))
    for i, ok in enumerate(flags[: len(old)]):
        assert not ok or same_bits(points[i], plain[i])
        for key, value in state.items():
            assert not ok or same_bits(value[i], plain_state[key][i]), key


# Finite or not


@given(SHAPES, DTYPES, SEEDS, st.data())
def test_all_finite_finds_one_bad_entry_anywhere(
    shapes: list, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    given_tensors = tensors(shapes, dtype, seed)
    expected = []
    for x in given_tensors:
        bad = data.draw(st.sampled_from([None, float("nan"), float("inf"), float("-inf")]))
        if bad is not None and x.numel():
            x.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = bad
        expected.append(bad is None or not x.numel())
    before = clones(given_tensors)
    flags = all_finite(given_tensors)
    assert [bool(flag) for flag in flags] == expected
    assert all(flag.dtype == torch.bool and flag.ndim == 0 for flag in flags)
    assert all(same_bits(a, b) for a, b in zip(given_tensors, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_all_finite_accepts_the_largest_and_smallest_numbers(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    huge = torch.tensor([info.max, info.max, -info.max, info.tiny, -0.0, 0.0], dtype=dtype)
    assert [bool(flag) for flag in all_finite([huge, -huge, huge.repeat(1000)])] == [True] * 3


def test_all_finite_sees_infinities_of_opposite_sign(device: str) -> None:
    both = torch.tensor([float("inf"), float("-inf"), 1.0], device=device)
    good = torch.ones(3, device=device)
    flags = all_finite([both, good])
    assert [bool(flag) for flag in flags] == [False, True]
    assert all(flag.device.type == device for flag in flags)
