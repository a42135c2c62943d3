"""The Euclidean norm, the largest entry, and AdamW beside them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dropmuon.norms import AdamW, Euclidean, Norm, Sign


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


def test_adamw_is_not_a_norm() -> None:
    assert not isinstance(AdamW(), Norm)


@pytest.mark.parametrize("betas", [(1.0, 0.9), (-0.1, 0.9), (0.9,)])
def test_bad_betas_are_refused(betas: Any) -> None:
    with pytest.raises(ValueError, match="betas must be two numbers"):
        AdamW(betas=betas)


def test_a_negative_eps_is_refused() -> None:
    with pytest.raises(ValueError, match="eps must be at least 0"):
        AdamW(eps=-1.0)
