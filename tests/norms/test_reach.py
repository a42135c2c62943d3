"""Which entries a unit direction must see together, and which it may compute apart."""

from __future__ import annotations

import pytest
import torch

from dropmuon.norms import (
    ColumnWise,
    Euclidean,
    Norm,
    RowWise,
    Sign,
    Spectral,
    Split,
    Transposed,
)

SHAPES = [(7,), (5, 3), (3, 5), (4, 3, 5), (4, 3, 2, 2)]
NORMS: list[Norm] = [
    Spectral("svd", scale="rms"),
    Spectral("svd", blocks="batch"),
    Euclidean(scale="rms"),
    Sign(scale="mean-in"),
    RowWise(scale="rms-in"),
    RowWise(blocks="batch"),
    ColumnWise(scale="rms-out"),
    ColumnWise(blocks="batch"),
    Transposed(RowWise(scale="rms")),
    Transposed(ColumnWise()),
    Transposed(Spectral("svd", scale="muon")),
]


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_entry_changes_no_other_beyond_the_reach(norm: Norm, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    changed = x.clone()
    changed[(1,) * len(shape)] += 3.0
    moved = (norm.unit_direction(changed) - norm.unit_direction(x)).abs() > 1e-9
    axes = norm.reach(shape).axes
    for place in moved.nonzero().tolist():
        assert all(at == 1 for axis, at in enumerate(place) if axis not in axes)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_unit_direction_by_length_is_the_tensor_over_its_length(
    norm: Norm, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reach = norm.reach(shape)
    if not reach.by_length:
        return
    lengths = x.square().sum(reach.axes, keepdim=True).sqrt() if reach.axes else x.abs()
    torch.testing.assert_close(norm.unit_direction(x), x / lengths * norm.factor(shape))


@pytest.mark.parametrize("norm", [Spectral(), Split(RowWise(), 3), RowWise(blocks=2)], ids=str)
def test_a_norm_that_says_nothing_must_see_everything(norm: Norm) -> None:
    assert norm.reach((6, 4)) == ((0, 1), False)


def test_norms_of_entries_rows_and_experts_need_not_see_a_whole_matrix() -> None:
    assert Sign().reach((6, 4)).axes == ()
    assert RowWise().reach((6, 4)).axes == (1,)
    assert ColumnWise().reach((6, 4)).axes == (0,)
    assert Transposed(RowWise()).reach((6, 4)).axes == (0,)
    assert Spectral(blocks="batch").reach((8, 6, 4)).axes == (1, 2)
