"""Iterations against the formulas of progressive training written out, one table or many."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dropmuon import samplers
from dropmuon.theory.comparisons import relative_cost
from dropmuon.theory.complexity import (
    Regime,
    generalized_weights,
    iterations_generalized,
    iterations_smooth,
    relative_iterations,
    smooth_weights,
)
from dropmuon.theory.costs import Costs, distribution_of
from dropmuon.theory.leading_order import StochasticCase
from dropmuon.theory.smoothness import Smoothness
from tests.theory.progressive_instances import cutoff_probabilities, spread_constants

B = 4
GAP, EPS = 3.0, 0.07
UNIT = Costs(1.0, [0.0] * B, [0.0] * B)
"""Every step costs 1."""


@given(L=spread_constants(B), p=cutoff_probabilities(B))
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


@given(L0=spread_constants(B), L1=spread_constants(B), p=cutoff_probabilities(B))
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


def test_schedules_are_evaluated_at_the_given_progress() -> None:
    sampler = samplers.Progressive(samplers.epoch_shift(1.0))
    smoothness = Smoothness.separable(np.ones(B), np.ones(B))
    early = iterations_smooth(sampler, smoothness, GAP, EPS, progress=0.0)
    late = iterations_smooth(sampler, smoothness, GAP, EPS, progress=1.0)
    assert early < late


@given(
    tables=arrays(np.float64, (2, 3, B, B), elements=st.floats(0.1, 10.0)),
    p=cutoff_probabilities(B),
    regime=st.sampled_from(get_args(Regime)),
)
def test_many_tables_at_once_are_as_one_by_one(
    tables: np.ndarray, p: np.ndarray, regime: Regime
) -> None:
    """The number of steps up to gap and epsilon, for tables (sets, layers) and stacks of them."""
    distribution = distribution_of(samplers.Progressive(p), B)
    l0, l1 = np.triu(np.maximum.accumulate(tables[:, :, ::-1], axis=2)[:, :, ::-1])
    case = StochasticCase(gap=0.5, sigma=0.1, rho_low=1.0, rho_high=2.0)
    together = relative_iterations(distribution, l0, l1, regime, case)
    assert together.shape == (3,)
    for k in range(3):
        smoothness = Smoothness.progressive(l0[k].T, l1[k].T)
        K = iterations_generalized(distribution, smoothness, gap=0.5, epsilon=1.0)
        exact = {
            "smooth": 1.0 / smooth_weights(distribution, smoothness).min(),
            "1/eps": K.linear,
            "1/eps^2": K.quadratic,
            "stochastic": relative_cost(distribution, UNIT, smoothness, "stochastic", case=case),
        }
        assert together[k] == pytest.approx(exact[regime], rel=1e-12)
        alone = relative_iterations(distribution, l0[k], l1[k], regime, case)
        assert alone.shape == ()
        assert float(alone) == pytest.approx(together[k], rel=1e-12)


def test_tables_that_do_not_fit_the_sets_are_refused() -> None:
    full: dict[tuple[int, ...], float] = {(0, 1): 1.0}
    with pytest.raises(ValueError, match=r"a row for each of the 1 sets, got shapes \(2, 2\)"):
        relative_iterations(full, np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"got shapes \(1, 2\) and \(3, 1, 2\)"):
        relative_iterations(full, np.ones((1, 2)), np.ones((3, 1, 2)), "1/eps")
    with pytest.raises(ValueError, match="L1 > 0 in every layer here, got 0 in layer 0"):
        relative_iterations(full, np.ones((1, 2)), regime="1/eps")
    with pytest.raises(ValueError, match="regime must be one of"):
        relative_iterations(full, np.ones((1, 2)), regime="smoth")  # type: ignore[arg-type]


SMOOTHNESS = Smoothness.separable([1.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iterations_smooth({(0,): 1.0}, SMOOTHNESS, 1, 1), "must reach every layer"),
        (lambda: iterations_smooth(samplers.Full(), SMOOTHNESS, -1, 1), "gap must be finite and"),
        (lambda: iterations_smooth(samplers.Full(), SMOOTHNESS, 1, 0), "epsilon must be finite"),
        (lambda: iterations_smooth(samplers.Full(), SMOOTHNESS, 1, math.nan), "epsilon must be"),
        (lambda: generalized_weights(samplers.Full(), SMOOTHNESS), "got 0 in layer 1; give it a"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("size", [1e200, 1e300])
def test_more_iterations_than_a_float_holds_are_an_error(size: float) -> None:
    smoothness = Smoothness.separable([size, 1.0], [size, 1.0])
    for count in (iterations_smooth, iterations_generalized):
        with pytest.raises(ValueError, match="iterations is larger than any float"):
            count(samplers.Progressive(), smoothness, gap=1e300, epsilon=1e-300)
