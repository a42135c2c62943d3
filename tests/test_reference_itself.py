"""The oracle itself: what `dropmuon.reference` computes, against definitions and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dropmuon import reference

DUALS: dict[str, Callable[[Tensor], Tensor]] = {
    "spectral": lambda g: torch.linalg.svdvals(g).sum(),
    "spectral-rms": lambda g: math.sqrt(g.shape[0] / g.shape[1]) * torch.linalg.svdvals(g).sum(),
    "euclidean": lambda g: g.square().sum().sqrt(),
    "sign": lambda g: g.abs().sum(),
    "column-wise": lambda g: g.square().sum(0).sqrt().sum(),
    "row-wise": lambda g: g.square().sum(1).sqrt().sum(),
}

PRIMALS: dict[str, Callable[[Tensor], Tensor]] = {
    "spectral": lambda z: torch.linalg.svdvals(z).max(),
    "spectral-rms": lambda z: torch.linalg.svdvals(z).max() / math.sqrt(z.shape[0] / z.shape[1]),
    "euclidean": lambda z: z.square().sum().sqrt(),
    "sign": lambda z: z.abs().max(),
    "column-wise": lambda z: z.square().sum(0).sqrt().max(),
    "row-wise": lambda z: z.square().sum(1).sqrt().max(),
}


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    radius=st.floats(0.01, 10.0),
    seed=st.integers(0, 2**31),
    norm=st.sampled_from(list(DUALS)),
)
def test_the_reference_lmo_is_in_the_ball_and_attains_the_dual_norm(
    rows: int, columns: int, radius: float, seed: int, norm: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    z = reference.lmo(norm, g, radius)
    expected = DUALS[norm](g)
    torch.testing.assert_close(PRIMALS[norm](z), torch.tensor(radius, dtype=torch.float64))
    torch.testing.assert_close(torch.sum(g * z), -radius * expected)
    torch.testing.assert_close(reference.dual(norm, g), expected)
    torch.testing.assert_close(PRIMALS[norm](reference.sharp(norm, g)), expected)


@pytest.mark.parametrize("norm", DUALS)
def test_the_reference_stays_where_the_gradient_is_zero(norm: str) -> None:
    zero = torch.zeros(3, 4, dtype=torch.float64)
    assert torch.equal(reference.lmo(norm, zero, 2.0).abs(), zero)


@pytest.mark.parametrize(("nesterov", "last"), [(False, 1.0), (True, 3.0)])
def test_the_reference_follows_a_computed_run(nesterov: bool, last: float) -> None:
    """beta = 1/4, t = 1, signs, two layers; the second moves in the steps 0 and 2 only.

    Layer 0 sees 4, -8, -8: momenta 4, 1, -5/4, so it steps -1, -1, +1; Nesterov descends along
    4, -5/4, -47/16 and steps -1, +1, +1. Layer 1 sees 2, 100, -4: momenta 2, 2, 1/2, and steps
    -1, 0, -1; Nesterov descends along 2, none, -5/8 and steps -1, 0, +1.
    """
    gradients = [(4.0, 2.0), (-8.0, 100.0), (-8.0, -4.0)]

    def gradient(X: list[list[Tensor]], k: int) -> list[list[Tensor]]:
        return [[torch.tensor([value])] for value in gradients[k]]

    start = [[torch.tensor([2.0])], [torch.tensor([2.0])]]
    X = reference.algorithm_1(
        start, gradient, [(0, 1), (0,), (0, 1)], 1.0, 0.25, lambda x: "sign", nesterov=nesterov
    )
    assert float(X[0][0]) == last
    assert float(X[1][0]) == (2.0 if nesterov else 0.0)
    assert float(start[0][0]) == 2.0
