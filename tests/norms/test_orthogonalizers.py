"""Orthogonalisers: exact, by iteration, by name, and of one's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dropmuon.norms import (
    ORTHOGONALIZERS,
    SVD,
    Euclidean,
    NewtonSchulz,
    Orthogonalizer,
    PolarExpress,
    Spectral,
    orthogonalize,
)
from dropmuon.norms.numerics import CUBIC, JORDAN
from tests.norms.singular_values import (
    literal_newton_schulz,
    polar_factor,
    well_conditioned,
)

ITERATIONS = ("newton-schulz", "cubic", "polar-express", "fast")
SHAPES = [(6, 6), (4, 10), (10, 4), (64, 320), (320, 64), (3, 8, 5), (2, 2, 5, 9), (2, 64, 200)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "method",
    [SVD(), NewtonSchulz(CUBIC, 40), PolarExpress(9), PolarExpress(12, gram=True)],
    ids=str,
)
def test_convergent_methods_reach_the_polar_factor(
    method: Orthogonalizer, shape: tuple[int, ...], device: str
) -> None:
    x = well_conditioned(*shape)
    for dtype in (torch.float32,) if device == "mps" else (torch.float64, torch.float32):
        got = orthogonalize(x.to(device, dtype), method).cpu().double()
        torch.testing.assert_close(got, polar_factor(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (3, 1, 9), (3, 9, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("method", ORTHOGONALIZERS)
def test_rows_and_columns_are_normalised_exactly(shape: tuple[int, ...], method: str) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    expected = x / x.square().sum((-2, -1), keepdim=True).sqrt()
    torch.testing.assert_close(orthogonalize(x, method), expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("method", ORTHOGONALIZERS)
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (64, 320), (3, 4, 6)], ids=str)
def test_zero_stays_zero_and_tiny_is_still_orthogonalised(
    method: str, shape: tuple[int, ...]
) -> None:
    assert torch.equal(orthogonalize(torch.zeros(shape), method), torch.zeros(shape))
    g = well_conditioned(*shape).float()
    expected = orthogonalize(g, method)
    torch.testing.assert_close(orthogonalize(g * 1e-12, method), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ORTHOGONALIZERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_input_is_unchanged_bit_for_bit(method: str, dtype: torch.dtype) -> None:
    for shape in ((5, 7), (7, 5), (64, 320), (2, 5, 7), (1, 6)):
        x = torch.randn(shape).to(dtype)
        before = x.clone()
        result = orthogonalize(x, method)
        assert result.dtype == dtype
        assert torch.equal(x, before)


def test_own_coefficients_are_one_polynomial_or_one_per_step() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(orthogonalize(x, JORDAN), orthogonalize(x, "newton-schulz"))
    torch.testing.assert_close(orthogonalize(x, CUBIC), orthogonalize(x, "cubic"))
    own = [(2.0, -1.5, 0.5), (1.5, -0.5)]
    torch.testing.assert_close(orthogonalize(x, own), literal_newton_schulz(x, own))
    repeated = literal_newton_schulz(x, [*own, own[-1]])
    torch.testing.assert_close(NewtonSchulz(own, steps=3)(x), repeated)
    torch.testing.assert_close(NewtonSchulz(own, steps=1)(x), literal_newton_schulz(x, own[:1]))


def test_own_function_gets_a_private_copy_in_the_working_type() -> None:
    x = torch.randn(4, 6).bfloat16()
    before = x.clone()

    def careless(matrix: Tensor) -> Tensor:
        assert matrix.dtype == torch.float32
        return matrix.mul_(2)

    result = orthogonalize(x, careless)
    assert torch.equal(x, before)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, 2 * x)
    wide = torch.randn(4, 6)
    assert orthogonalize(wide, careless).data_ptr() != wide.data_ptr()
    with pytest.raises(ValueError, match=r"must keep the shape \(4, 6\)"):
        orthogonalize(wide, lambda matrix: matrix.mT)


def test_a_name_and_what_it_stands_for_are_equal() -> None:
    assert Spectral("svd") == Spectral(SVD())
    assert Spectral() == Spectral("newton-schulz") == Spectral((3.4445, -4.7750, 2.0315))
    assert Spectral("cubic") == Spectral(NewtonSchulz((1.5, -0.5), 20))
    assert Spectral([[1.5, -0.5]]) == Spectral(((1.5, -0.5),))
    assert Euclidean(scale=1) == Euclidean()


@pytest.mark.parametrize(
    "coefficients",
    [(), (1.0,), (1.0, 2.0, 3.0, 4.0), (1.0, math.nan, 0.0), [(1.0,)], [()], 3.0, [(1.0, "a")]],
    ids=repr,
)
def test_bad_coefficients_are_refused_at_construction(coefficients: object) -> None:
    with pytest.raises(ValueError, match="coefficients must be finite numbers"):
        Spectral(coefficients)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_bad_steps_are_refused(steps: object) -> None:
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        NewtonSchulz(steps=steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        PolarExpress(steps=steps)  # type: ignore[arg-type]


def test_bad_settings_of_the_polar_express_are_refused_with_their_value() -> None:
    with pytest.raises(ValueError, match=r"lower must be between 0 and 1, got 1\.5"):
        PolarExpress(lower=1.5)
    with pytest.raises(ValueError, match=r"safety must be in \[1, 2\), got 0\.5"):
        PolarExpress(safety=0.5)
    with pytest.raises(ValueError, match="degree must be 5 or 9, got 7"):
        PolarExpress(degree=7)
    with pytest.raises(ValueError, match="schatten must be 2 or 8, got 4"):
        PolarExpress(schatten=4)


@pytest.mark.parametrize("method", ITERATIONS)
@pytest.mark.parametrize("shape", [(2, 2), (8, 8), (16, 16), (8, 32), (3, 24, 24)], ids=str)
@pytest.mark.parametrize("size", [1.4e-45, 6e-45, 1e-40, 1e38])
def test_entries_at_the_ends_of_float32_are_as_good_as_others(
    method: str, shape: tuple[int, ...], size: float
) -> None:
    """Momentum of a layer whose gradients stay at zero decays to subnormal numbers, and no further.

    The rounding of what is subnormal differs, so entries are multiples of one size.
    """
    signs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).sign()
    found = orthogonalize(signs * size, method)
    torch.testing.assert_close(found, orthogonalize(signs, method), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ITERATIONS)
@pytest.mark.parametrize("shape", [(40, 60), (3, 130, 140), (3, 64, 400)], ids=str)
def test_autocast_changes_nothing(method: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found = orthogonalize(x, method)
    assert torch.equal(found, orthogonalize(x, method))
