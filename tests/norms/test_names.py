"""Norms by name."""

from __future__ import annotations

import pytest

from dropmuon.norms import (
    AdamW,
    ColumnWise,
    Euclidean,
    RowWise,
    Sign,
    Spectral,
    by_name,
)


def test_norms_by_name() -> None:
    assert by_name("spectral", "svd") == Spectral("svd")
    assert by_name("spectral", orthogonalize=(1.5, -0.5)) == Spectral("cubic")
    assert by_name("euclidean") == Euclidean()
    assert by_name("sign") == Sign()
    assert by_name("column-wise") == ColumnWise()
    assert by_name("row-wise") == RowWise()
    assert by_name("adamw") == AdamW()
    given = Sign(scale=3.0)
    assert by_name(given) is given


def test_misspelt_names_are_refused_at_once_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"norm must be one of .*did you mean 'spectral'"):
        by_name("spectrall")
    with pytest.raises(ValueError, match=r"orthogonalize must be .*did you mean 'newton-schulz'"):
        Spectral("newton-schultz")
    with pytest.raises(ValueError, match=r"orthogonalize must be"):
        by_name("spectral", "nope")
    with pytest.raises(ValueError, match=r"scale must be one of .*did you mean 'muon'"):
        Euclidean(scale="muonn")
