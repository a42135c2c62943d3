"""The Euclidean norm and the largest entry."""

from __future__ import annotations

import math

import pytest
import torch

from dropmuon.norms import Euclidean, Sign


def test_norms_equal_their_closed_forms() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    assert float(Sign().norm(x)) == float(x.abs().max())
    v = torch.randn(9, dtype=torch.float64)
    rms = float(v.square().mean().sqrt())
    assert float(Euclidean(scale="rms").norm(v)) == pytest.approx(rms)


def test_duals_equal_their_closed_forms() -> None:
    g = torch.randn(5, 8, dtype=torch.float64)
    assert float(Euclidean().dual(g)) == pytest.approx(math.sqrt(float(g.square().sum())))
    assert float(Sign().dual(g)) == pytest.approx(float(g.abs().sum()))
