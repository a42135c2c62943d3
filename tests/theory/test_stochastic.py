"""The stochastic bound, against the formulas of progressive training written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dropmuon import rules, samplers
from dropmuon.theory.smoothness import Smoothness
from dropmuon.theory.stochastic import (
    admissible_eta,
    horizon_momentum,
    horizon_radii,
    stochastic_bound,
)
from tests.theory.progressive_instances import cutoff_probabilities, spread_constants

B = 4
GAP = 3.0
positive = st.floats(0.1, 10.0)
vectors = arrays(np.float64, B, elements=positive)
horizons = st.integers(1, 10_000)


@given(
    L0=spread_constants(B),
    L1=spread_constants(B),
    p=cutoff_probabilities(B),
    K=horizons,
    low=vectors,
    wider=vectors,
    sigma=vectors,
    share=st.floats(0.01, 1.0),
)
def test_stochastic_bound_of_progressive_training(
    L0: np.ndarray,
    L1: np.ndarray,
    p: np.ndarray,
    K: int,
    low: np.ndarray,
    wider: np.ndarray,
    sigma: np.ndarray,
    share: float,
) -> None:
    """Theorem "stoch_rpt_l0l1_iter", term by term."""
    high, beta = low + wider, (K + 1) ** (-1 / 2)
    F = [sum(p[: i + 1]) for i in range(B)]
    E0 = [sum(p[s] * L0[i, s] for s in range(i + 1)) for i in range(B)]
    E1 = [sum(p[s] * L1[i, s] for s in range(i + 1)) for i in range(B)]
    R = [sum(p[s] * L0[i, s] / L1[i, s] for s in range(i + 1)) for i in range(B)]
    M = sum(p[s] * max(L1[i, s] for i in range(B)) for s in range(B))
    largest = np.sqrt(
        [
            min(
                (K + 1) ** (1 / 2) / (4 * E1[i] * M),
                low[i] * p[0] / (16 * high[i] * (1 - beta)) / F[i] / E1[i] / M,
                1.0,
            )
            for i in range(B)
        ]
    )
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L0, L1)
    np.testing.assert_allclose(admissible_eta(sampler, smoothness, K, low, high), largest, 1e-9)

    eta = share * largest
    mean = sum(F[i] * eta[i] for i in range(B)) / B
    bend = [E0[i] + E1[i] * R[i] for i in range(B)]
    bound = stochastic_bound(sampler, smoothness, GAP, K, eta, sigma, low, high)
    expected = {
        "gap": 3 * GAP / ((K + 1) ** (1 / 4) * mean),
        "start": 6 / (K + 1) ** (1 / 2) * sum(eta * high * sigma / mean),
        "drift": sum(2 * high * eta**2 / (low * (K + 1) ** (1 / 4) * mean) * bend),
        "curvature": sum(eta**2 / (2 * (K + 1) ** (3 / 4) * mean) * bend),
        "noise": sum(2 * high * sigma * F * eta / ((K + 1) ** (1 / 4) * mean)),
    }
    assert bound.terms == pytest.approx(expected, rel=1e-9)
    assert bound.total == pytest.approx(sum(expected.values()), rel=1e-9)


@given(L0=spread_constants(B), K=horizons)
def test_smooth_functions_admit_unit_eta_and_lose_the_l1_terms(L0: np.ndarray, K: int) -> None:
    smoothness = Smoothness.progressive(L0)
    sampler = samplers.Progressive()
    assert admissible_eta(sampler, smoothness, K, 1.0, 2.0).tolist() == [1.0] * B
    bound = stochastic_bound(sampler, smoothness, GAP, K, 1.0, 0.0, 1.0, 2.0)
    E0 = np.array([L0[i].sum() / B for i in range(B)])
    mean = (B + 1) / (2 * B)
    assert bound.curvature == pytest.approx(E0.sum() / (2 * (K + 1) ** 0.75 * mean))
    assert bound.noise == bound.start == 0.0


@given(K=horizons)
def test_horizon_is_that_of_the_optimizers_step_rule(K: int) -> None:
    rule = rules.Horizon(K, [0.5, 0.25])
    assert horizon_momentum(np.int64(K)) == horizon_momentum(K)
    assert horizon_momentum(K) == pytest.approx(rule.momentum, rel=1e-12)
    lengths = [rule.length(i, (0, 1), None, None) for i in range(2)]
    np.testing.assert_allclose(horizon_radii([0.5, 0.25], K), lengths, rtol=1e-12)


def test_a_layer_with_and_without_l1_has_no_ratio() -> None:
    l0 = {(0, 1): [2.0, 2.0], (1,): [0.0, 1.0]}
    mixed = Smoothness(l0, {(0, 1): [1.0, 1.0], (1,): [0.0, 0.0]})
    sampler = samplers.Progressive([0.5, 0.5])
    with pytest.raises(ValueError, match="for all sets with layer 1 or for none"):
        stochastic_bound(sampler, mixed, 1.0, 10, 1e-3, 1.0, 1.0, 1.0)


SMOOTHNESS = Smoothness.separable([1.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: horizon_momentum(0), "horizon must be a whole number of at least 1, got 0"),
        (
            lambda: horizon_momentum(1.0),  # type: ignore[arg-type]
            "horizon must be a whole number of at least 1, got 1.0",
        ),
        (lambda: horizon_radii([-1.0], 1), "eta must be finite and at least 0, got -1"),
        (
            lambda: admissible_eta(samplers.Full(), SMOOTHNESS, 1, [1], [1, 1]),
            "rho_low must have 2",
        ),
        (lambda: admissible_eta(samplers.Full(), SMOOTHNESS, 1, 0.0, 1.0), "rho_low must be above"),
        (lambda: admissible_eta(samplers.Full(), SMOOTHNESS, 1, 2.0, 1.0), "at most rho_high, got"),
        (
            lambda: stochastic_bound(samplers.Full(), SMOOTHNESS, 1, 1, 2.0, 1.0, 1.0, 1.0),
            r"eta must be at most admissible_eta\(...\)",
        ),
        (
            lambda: stochastic_bound(samplers.Full(), SMOOTHNESS, 1, 1, 0.1, -1.0, 1.0, 1.0),
            "sigma must be finite and at least 0",
        ),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
