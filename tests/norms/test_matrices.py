"""Parameters as matrices, and norms of rows and columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dropmuon.norms import ColumnWise, RowWise, Sign, Spectral
from tests.norms.singular_values import nuclear


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
