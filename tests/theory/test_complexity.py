"""Iterations and bounds, against the formulas of progressive training written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dropmuon import rules, samplers
from dropmuon.theory.complexity import (
    admissible_eta,
    generalized_weights,
    horizon_momentum,
    horizon_radii,
    iterations_generalized,
    iterations_smooth,
    smooth_weights,
    stochastic_bound,
)
from dropmuon.theory.smoothness import Smoothness

B = 4
GAP, EPS = 3.0, 0.07
positive = st.floats(0.1, 10.0)


@st.composite
def progressive_constants(draw: st.DrawFn) -> np.ndarray:
    """A matrix L[i, s] > 0 that falls with the cutoff s."""
    steps = draw(arrays(np.float64, (B, B), elements=positive))
    return np.tril(steps[:, ::-1].cumsum(axis=1)[:, ::-1])


@st.composite
def probabilities(draw: st.DrawFn) -> np.ndarray:
    p = draw(arrays(np.float64, B, elements=st.floats(0.01, 1.0)))
    return p / p.sum()


vectors = arrays(np.float64, B, elements=positive)
horizons = st.integers(1, 10_000)


@given(L=progressive_constants(), p=probabilities())
def test_smooth_iterations_of_progressive_training(L: np.ndarray, p: np.ndarray) -> None:
    """Theorem "rpt_smooth_iter" and the K that follows it."""
    w = np.zeros(B)
    for i in range(B):
        for s in range(i + 1):
            w[i] += p[s] / (2 * L[i, s])
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L)
    np.testing.assert_allclose(smooth_weights(sampler, smoothness), w, rtol=1e-9)
    exact, steps = GAP / (EPS * w.min()), iterations_smooth(sampler, smoothness, GAP, EPS)
    assert exact * (1 - 1e-9) <= steps <= exact * (1 + 1e-9) + 1


@given(L0=progressive_constants(), L1=progressive_constants(), p=probabilities())
def test_generalized_iterations_of_progressive_training(
    L0: np.ndarray, L1: np.ndarray, p: np.ndarray
) -> None:
    """Theorem "rpt_l0l1_iter"; the unweighted form puts min_i w_i for the mean."""
    F = [sum(p[: i + 1]) for i in range(B)]
    E0 = [sum(p[s] * L0[i, s] for s in range(i + 1)) for i in range(B)]
    E1 = [sum(p[s] * L1[i, s] for s in range(i + 1)) for i in range(B)]
    w = np.array([F[i] ** 2 / E1[i] for i in range(B)])
    spread = sum(F[i] ** 2 * E0[i] / E1[i] ** 2 for i in range(B))
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L0, L1)
    np.testing.assert_allclose(generalized_weights(sampler, smoothness), w, rtol=1e-9)
    for weighted, scale in ((True, w.mean()), (False, w.min())):
        K = iterations_generalized(sampler, smoothness, GAP, EPS, weighted=weighted)
        assert K.quadratic == pytest.approx(2 * GAP * spread / (EPS**2 * scale**2), rel=1e-9)
        assert K.linear == pytest.approx(2 * GAP / (EPS * scale), rel=1e-9)
        assert K.total == math.ceil(K.quadratic + K.linear)
        assert K.terms == {"quadratic": K.quadratic, "linear": K.linear}


@given(
    L0=progressive_constants(),
    L1=progressive_constants(),
    p=probabilities(),
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


def test_full_updates_recover_gluon() -> None:
    """The remark after Theorem "rt_l0l1_iter": w_i = 1 / L1_{i,[b]}."""
    smoothness = Smoothness.separable([1.0, 2.0, 3.0], [0.5, 1.0, 4.0])
    np.testing.assert_allclose(generalized_weights(samplers.Full(), smoothness), [2.0, 1.0, 0.25])
    K = iterations_generalized(samplers.Full(), smoothness, GAP, EPS, weighted=True)
    spread, mean = 1 / 0.25 + 2 / 1 + 3 / 16, (2.0 + 1.0 + 0.25) / 3
    assert K.quadratic == pytest.approx(2 * GAP * spread / (EPS * mean) ** 2)
    assert K.linear == pytest.approx(2 * GAP / (EPS * mean))


def test_partitions_weigh_layers_by_their_block() -> None:
    """Section "Arbitrary Submodel Sampling": p_{k(i)} / (2 L0_{i,B}) and p_{k(i)} / L1_{i,B}."""
    blocks, p = [(0, 2), (1,)], [0.25, 0.75]
    constants = {(0, 2): [4.0, 0.0, 2.0], (1,): [0.0, 5.0, 0.0]}
    smoothness = Smoothness(constants, constants)
    sampler = samplers.Partition(blocks, p)
    expected = np.array([0.25 / 4, 0.75 / 5, 0.25 / 2])
    np.testing.assert_allclose(smooth_weights(sampler, smoothness), expected / 2)
    np.testing.assert_allclose(generalized_weights(sampler, smoothness), expected)


def test_nice_weights_are_means_over_the_sets() -> None:
    sampler = samplers.Nice(2)
    constants = {s: np.array([1.0, 2.0, 3.0]) * (1 + sum(s)) for s in sampler.support(3)}
    w = smooth_weights(sampler, Smoothness(constants))
    # sets (0, 1), (0, 2), (1, 2) scale by 2, 3 and 4, each with probability 1/3
    np.testing.assert_allclose(w[0], (1 / (2 * 2) + 1 / (2 * 3)) / 3)
    np.testing.assert_allclose(w[2], (1 / (2 * 9) + 1 / (2 * 12)) / 3)


def test_gradient_descent_on_a_quadratic_keeps_the_promise() -> None:
    """f(x) = x^T H x / 2 with row sums of |H| as constants: serial steps reach epsilon in K."""
    H = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 4.0]])
    sets = [(0,), (1,), (2,)]
    smoothness = Smoothness({s: np.abs(H[:, list(s)]).sum(axis=1) for s in sets})
    sampler, rng = samplers.Serial([0.3, 0.3, 0.4]), np.random.default_rng(0)
    x = np.array([1.0, -2.0, 1.0])
    K = iterations_smooth(sampler, smoothness, gap=x @ H @ x / 2, epsilon=0.5)
    squares = []
    for _ in range(K):
        gradient = H @ x
        squares.append(gradient @ gradient)
        (i,) = sampler.sample(3, rng)
        x[i] -= gradient[i] / smoothness.l0(i, (i,))
    assert np.mean(squares) <= 0.5


def test_an_affine_layer_sets_no_limit() -> None:
    """The paper's f(x, y) = a x y: alone, a layer has constant 0; together, a."""
    smoothness = Smoothness({(0,): [0, 0], (1,): [0, 0], (0, 1): [2.0, 2.0]})
    assert np.isinf(smooth_weights(samplers.Serial(), smoothness)).all()
    assert smooth_weights(samplers.Full(), smoothness).tolist() == [0.25, 0.25]
    mixed = {(0,): 0.5, (0, 1): 0.5}
    assert smooth_weights(mixed, smoothness).tolist() == [np.inf, 0.125]
    assert iterations_smooth(mixed, smoothness, gap=1.0, epsilon=1.0) == 8


@given(L0=progressive_constants(), K=horizons)
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


def test_progress_changes_the_answer_of_schedules() -> None:
    sampler = samplers.Progressive(samplers.epoch_shift(1.0))
    smoothness = Smoothness.separable(np.ones(B), np.ones(B))
    early = iterations_smooth(sampler, smoothness, GAP, EPS, progress=0.0)
    late = iterations_smooth(sampler, smoothness, GAP, EPS, progress=1.0)
    assert early < late


SMOOTHNESS = Smoothness.separable([1.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iterations_smooth({(0,): 1.0}, SMOOTHNESS, 1, 1), "must reach every layer"),
        (lambda: iterations_smooth(samplers.Full(), SMOOTHNESS, -1, 1), "gap must be finite and"),
        (lambda: iterations_smooth(samplers.Full(), SMOOTHNESS, 1, 0), "epsilon must be finite"),
        (lambda: iterations_smooth(samplers.Full(), SMOOTHNESS, 1, math.nan), "epsilon must be"),
        (lambda: generalized_weights(samplers.Full(), SMOOTHNESS), "got 0 in layer 1; give it a"),
        (lambda: horizon_momentum(0), "horizon must be a whole number of at least 1, got 0"),
        (lambda: horizon_momentum(1.0), "horizon must be a whole number of at least 1, got 1.0"),
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


def test_a_layer_with_and_without_l1_has_no_ratio() -> None:
    l0 = {(0, 1): [2.0, 2.0], (1,): [0.0, 1.0]}
    mixed = Smoothness(l0, {(0, 1): [1.0, 1.0], (1,): [0.0, 0.0]})
    sampler = samplers.Progressive([0.5, 0.5])
    with pytest.raises(ValueError, match="for all sets with layer 1 or for none"):
        stochastic_bound(sampler, mixed, 1.0, 10, 1e-3, 1.0, 1.0, 1.0)
