"""The polynomials of the Polar Express."""

from __future__ import annotations

import pytest
import torch

from dropmuon.norms.polar_express import best_quintic, polar_express_coefficients

# Amsel et al. 2025, arXiv 2505.16932, the listing of the algorithm; without its safety factor.
PUBLISHED = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]


def test_polar_express_coefficients_are_the_published_ones() -> None:
    for ours, published in zip(polar_express_coefficients(5), PUBLISHED, strict=True):
        assert ours == pytest.approx(published, rel=1e-11)
    assert polar_express_coefficients(10)[-1] == (1.875, -1.25, 0.375)


def test_polar_express_safety_divides_the_argument() -> None:
    for (a, b, c), safe in zip(
        polar_express_coefficients(5), polar_express_coefficients(5, safety=1.01), strict=True
    ):
        assert safe == pytest.approx((a / 1.01, b / 1.01**3, c / 1.01**5))


@pytest.mark.parametrize("low", [0.03, 0.3, 0.9])
def test_best_quintic_errs_equally_at_four_points(low: float) -> None:
    a, b, c = best_quintic(low, 1.0)
    x = torch.linspace(low, 1.0, 20001, dtype=torch.float64)
    error = a * x + b * x**3 + c * x**5 - 1
    top = float(error.abs().max())
    assert float(error[0]) == pytest.approx(-top, rel=1e-5)
    assert float(error[-1]) == pytest.approx(top, rel=1e-5)
    assert float(error.max()) == pytest.approx(-float(error.min()), rel=1e-5)
    inner = error[1:-1].sign().diff().ne(0).sum()
    assert int(inner) == 3  # three sign changes between four alternating extremes
