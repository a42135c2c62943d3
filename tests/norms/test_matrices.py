"""Parameters as matrices; norms of rows and columns; the spectral norm, alone and in batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dropmuon.norms import (
    ColumnWise,
    Euclidean,
    Norm,
    RowWise,
    Sign,
    Spectral,
    matrices,
    orthogonalize,
)
from dropmuon.norms.matrices import _stacking_pays
from tests.norms.singular_values import nuclear

SHAPES = [
    (6, 9),
    (9, 6),
    (6, 9),
    (4,),
    (1, 9),
    (6, 3, 3),
    (2, 6, 9),
    (),
    (0, 3),
    (6, 9),
    (1, 9),
    (2, 6, 9),
    (4,),
]
NORMS = [
    Spectral(),
    Spectral("svd", scale="muon"),
    Spectral("polar-express", blocks="batch"),
    Spectral("cubic", scale="rms"),
    Euclidean(scale="rms"),
    Sign(),
    ColumnWise(),
]


def mixed(device: str) -> list[Tensor]:
    wide = torch.float32 if device == "mps" else torch.float64
    dtypes = [torch.float32, torch.bfloat16, wide]
    return [torch.randn(shape).to(device, d) for d in dtypes for shape in SHAPES]


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_unit_directions_of_many_are_those_of_each(norm: Norm, device: str) -> None:
    gs = mixed(device)
    before = [g.clone() for g in gs]
    together = norm.unit_directions(gs)
    assert all(torch.equal(g, b) for g, b in zip(gs, before, strict=True))
    for g, direction in zip(gs, together, strict=True):
        assert (direction.shape, direction.dtype) == (g.shape, g.dtype)
        tolerance = 1e-2 if g.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(
            direction, norm.unit_direction(g), rtol=tolerance, atol=tolerance
        )


def test_unit_directions_of_nothing_are_nothing() -> None:
    assert Spectral().unit_directions([]) == []


def test_equal_small_matrices_are_orthogonalised_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []

    def counted(x: Tensor, *rest: Any) -> Tensor:
        calls.append(tuple(x.shape))
        return orthogonalize(x, *rest)

    monkeypatch.setattr(matrices, "orthogonalize", counted)
    Spectral().unit_directions([torch.randn(s) for s in ((4, 6), (5, 5), (4, 6), (2, 3, 4, 6))])
    assert sorted(calls) == [(2, 4, 6), (2, 72), (5, 5)]
    calls.clear()
    Spectral(blocks="batch").unit_directions([torch.randn(4, 6), torch.randn(3, 4, 6)])
    assert calls == [(4, 4, 6)]
    calls.clear()
    Spectral().unit_directions([torch.randn(4, 6), torch.randn(4, 6, dtype=torch.float64)])
    assert calls == [(4, 6), (4, 6)]


def test_big_matrices_are_not_copied_into_a_stack_on_a_cpu() -> None:
    assert _stacking_pays(torch.empty(1, 64, 576))
    assert _stacking_pays(torch.empty(1, 576, 64))
    assert not _stacking_pays(torch.empty(1, 1024, 1024))
    assert _stacking_pays(torch.empty(1, 256, 1024, device="meta"))


def test_a_stack_of_big_blocks_equals_its_blocks_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = torch.randn(3, 8, 12)
    together = Spectral(blocks="batch").unit_direction(g)
    monkeypatch.setattr("dropmuon.norms.matrices._STACK_BELOW", (0, 0))
    torch.testing.assert_close(Spectral(blocks="batch").unit_direction(g), together)


def test_matrices_stay_apart_for_a_function_of_ones_own() -> None:
    shapes: list[tuple[int, ...]] = []

    def own(matrix: Tensor) -> Tensor:
        shapes.append(tuple(matrix.shape))
        return matrix

    Spectral(own).unit_directions([torch.randn(3, 4), torch.randn(3, 4)])
    Spectral(own, blocks=2).unit_direction(torch.randn(4, 4))
    assert shapes == [(3, 4), (3, 4), (2, 2, 4)]


def test_default_orthogonaliser_keeps_the_facts_within_its_stated_band() -> None:
    g = torch.randn(24, 40, dtype=torch.float64)
    norm, exact = Spectral(), Spectral("svd")
    assert 0.7 < float(exact.norm(norm.lmo(g, 1.0))) < 1.25
    assert float(norm.dual(g)) == pytest.approx(float(exact.dual(g)), rel=0.25)
    torch.testing.assert_close(norm.unit_direction(g), orthogonalize(g))


def test_norm_and_dual_equal_their_closed_forms() -> None:
    g = torch.randn(5, 8, dtype=torch.float64)
    assert float(Spectral().norm(g)) == pytest.approx(float(torch.linalg.svdvals(g)[0]))
    assert float(Spectral("svd").dual(g)) == pytest.approx(nuclear(g))
    assert float(Spectral("cubic").dual(g)) == pytest.approx(nuclear(g), rel=1e-6)
    scaled = nuclear(g) * math.sqrt(5 / 8)
    assert float(Spectral("svd", scale="rms").dual(g)) == pytest.approx(scaled)
    v = torch.randn(9, dtype=torch.float64)
    assert float(Spectral().norm(v)) == pytest.approx(3 * float(v.square().mean().sqrt()))


def test_the_exact_dual_sums_the_singular_values_whatever_the_orthogonaliser() -> None:
    g = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    matrix = g.reshape(6, 18)
    expected = nuclear(matrix) * math.sqrt(6 / 18)
    for method in ("newton-schulz", "polar-express", "svd"):
        norm = Spectral(method, scale="rms")
        assert float(norm.exact_dual(g)) == pytest.approx(expected)
    blocks = nuclear(matrix[:3]) + nuclear(matrix[3:])
    assert float(Spectral(blocks=2).exact_dual(g)) == pytest.approx(blocks)
    assert abs(float(Spectral().dual(g)) - nuclear(matrix)) > 1e-3 * nuclear(matrix)


def test_the_exact_dual_is_taken_in_at_least_float32() -> None:
    g = torch.randn(4, 6).bfloat16()
    assert Spectral().exact_dual(g).dtype == torch.float32
    assert float(Spectral().exact_dual(g)) == pytest.approx(nuclear(g.float()), rel=1e-5)
    assert float(Spectral().exact_dual(torch.zeros(0, 3))) == 0.0


def test_a_precision_that_is_no_float_is_refused() -> None:
    with pytest.raises(ValueError, match="precision must be None or one of"):
        Spectral(precision=torch.int32)


# Rows, columns and blocks


def test_zero_rows_and_columns_stay_zero() -> None:
    g = torch.randn(4, 6)
    g[1], g[:, 2] = 0, 0
    for norm in (ColumnWise(), RowWise(), Spectral("svd"), Sign()):
        direction = norm.unit_direction(g)
        assert direction.isfinite().all()
        assert torch.equal(direction[1], torch.zeros(6)) or isinstance(norm, Spectral)
        torch.testing.assert_close(direction[:, 2], torch.zeros(4))


def test_grouped_convolution_is_a_block_diagonal_matrix() -> None:
    g = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    first, second = (part.reshape(3, 18) for part in g.split(3))
    norm, whole = Spectral("svd", blocks=2), Spectral("svd")
    assert float(norm.dual(g)) == pytest.approx(nuclear(torch.block_diag(first, second)))
    assert float(norm.norm(g)) == pytest.approx(float(whole.norm(torch.block_diag(first, second))))
    torch.testing.assert_close(
        norm.unit_direction(g).reshape(6, 18),
        torch.cat([whole.unit_direction(first), whole.unit_direction(second)]),
    )


def test_convolution_is_the_matrix_of_outputs_by_everything_else() -> None:
    g = torch.randn(4, 3, 2, 2)
    flat = Spectral("svd", scale="rms").unit_direction(g.reshape(4, 12)).reshape(g.shape)
    torch.testing.assert_close(Spectral("svd", scale="rms").unit_direction(g), flat)
    assert float(Spectral("svd", scale="rms").norm(flat)) == pytest.approx(1, rel=1e-5)


def test_norms_and_duals_equal_their_closed_forms() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    columns, rows = x.square().sum(0).sqrt(), x.square().sum(1).sqrt()
    assert float(ColumnWise().norm(x)) == pytest.approx(float(columns.max()))
    assert float(RowWise().norm(x)) == pytest.approx(float(rows.max()))
    assert float(ColumnWise().dual(x)) == pytest.approx(float(columns.sum()))
    assert float(RowWise().dual(x)) == pytest.approx(float(rows.sum()))


@pytest.mark.parametrize("blocks", [0, -2, "rows", 1.5, True])
def test_blocks_are_a_whole_number_or_a_batch(blocks: Any) -> None:
    message = "blocks must be a whole number of at least 1, got .*; use 'batch' for a stack"
    with pytest.raises(ValueError, match=message):
        Spectral(blocks=blocks)


def test_blocks_that_do_not_divide_a_parameter_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks=4 for shape \(6, 2\)"):
        Spectral(blocks=4).unit_direction(torch.ones(6, 2))
