"""Norms of what is stored transposed, and of what is stored together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.norms import (
    SCALES,
    ColumnWise,
    Euclidean,
    MatrixNorm,
    RowWise,
    Sign,
    Spectral,
    Split,
    Transposed,
)

scales = st.sampled_from(sorted(SCALES))
sizes = st.integers(1, 7)
seeds = st.integers(0, 2**31)


def matrix(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(scale=scales, out=sizes, in_=sizes, seed=seeds)
def test_transposed_storage_changes_nothing_but_the_storage(
    scale: str, out: int, in_: int, seed: int
) -> None:
    g = matrix(seed, out, in_)
    stored = g.mT.contiguous()
    for base in (Spectral("svd", scale=scale), ColumnWise(scale=scale), Sign(scale=scale)):
        norm = Transposed(base)
        assert float(norm.norm(stored)) == pytest.approx(float(base.norm(g)))
        assert float(norm.dual(stored)) == pytest.approx(float(base.dual(g)))
        assert float(norm.exact_dual(stored)) == pytest.approx(float(base.exact_dual(g)))
        torch.testing.assert_close(norm.unit_direction(stored), base.unit_direction(g).mT)
        torch.testing.assert_close(norm.unit_directions([stored])[0], base.unit_direction(g).mT)
        assert norm.rho((in_, out)) == base.rho((out, in_))
        assert norm.direction_cost(stored) == base.direction_cost(g)


def test_a_wide_layer_of_gpt2_moves_as_far_as_the_same_linear_layer() -> None:
    stored = matrix(0, 8, 32)
    step = Transposed(Spectral("svd", scale="muon")).unit_direction(stored)
    assert float(torch.linalg.matrix_norm(step, ord=2)) == pytest.approx(2.0)
    inverted = Spectral("svd", scale="muon").unit_direction(stored)
    assert float(torch.linalg.matrix_norm(inverted, ord=2)) == pytest.approx(1.0)


def test_rows_and_columns_are_those_of_the_map() -> None:
    stored = matrix(0, 3, 5)
    torch.testing.assert_close(
        Transposed(RowWise()).unit_direction(stored), ColumnWise().unit_direction(stored)
    )


@settings(derandomize=True, deadline=None, max_examples=40)
@given(scale=scales, pieces=st.lists(sizes, min_size=1, max_size=4), in_=sizes, seed=seeds)
def test_pieces_step_as_if_each_were_a_parameter(
    scale: str, pieces: list[int], in_: int, seed: int
) -> None:
    apart = [matrix(seed + n, size, in_) for n, size in enumerate(pieces)]
    together = torch.cat(apart)
    base: MatrixNorm
    for base in (Spectral("svd", scale=scale), RowWise(scale=scale)):
        norm = Split(base, tuple(pieces))
        expected = torch.cat([base.unit_direction(g) for g in apart])
        torch.testing.assert_close(norm.unit_direction(together), expected)
        norms = [float(base.norm(g)) for g in apart]
        duals = [float(base.exact_dual(g)) for g in apart]
        assert float(norm.norm(together)) == pytest.approx(max(norms))
        assert float(norm.exact_dual(together)) == pytest.approx(sum(duals))
        assert norm.direction_cost(together) == sum(base.direction_cost(g) for g in apart)


def test_equal_pieces_are_a_number_of_them() -> None:
    g = matrix(0, 6, 5)
    by_number = Split(Spectral("svd"), 3).unit_direction(g)
    torch.testing.assert_close(by_number, Split(Spectral("svd"), (2, 2, 2)).unit_direction(g))
    torch.testing.assert_close(by_number, Spectral("svd", blocks=3).unit_direction(g))


@pytest.mark.parametrize(("pieces", "shape"), [(4, (6, 2)), ((3, 2), (6, 2)), (2, ())])
def test_pieces_that_do_not_make_up_the_rows_are_refused(
    pieces: int | tuple[int, ...], shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="pieces must make up dimension 0, got pieces="):
        Split(Spectral(), pieces).unit_direction(torch.ones(shape))


@pytest.mark.parametrize("pieces", [0, (), (3, 0), (2, 1.5), "qkv"])
def test_pieces_are_a_number_or_sizes(pieces: object) -> None:
    with pytest.raises(ValueError, match="pieces must be a"):
        Split(Spectral(), pieces)  # type: ignore[arg-type]


def test_composed_norms_can_be_compared_and_read() -> None:
    norm = Transposed(Split(Spectral(scale="muon"), 3))
    assert norm == Transposed(Split(Spectral(scale="muon"), 3))
    assert hash(norm) == hash(Transposed(Split(Spectral(scale="muon"), 3)))
    assert norm != Transposed(Split(Spectral(scale="muon"), 2))
    assert str(norm) == "Transposed(Split(Spectral(scale=muon), 3))"
    assert "Spectral(scale='muon'" in repr(norm)
    assert str(Transposed(Euclidean())) == "Transposed(Euclidean)"
