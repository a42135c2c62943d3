"""The stochastic bound, against the formulas of progressive training written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom

from dropmuon import rules, samplers, theory
from dropmuon.theory.costs import distribution_of
from dropmuon.theory.smoothness import Smoothness
from dropmuon.theory.stochastic import (
    PartsDraws,
    admissible_eta,
    horizon_momentum,
    horizon_radii,
    parts_variance,
    stochastic_bound,
)
from tests.theory.progressive_instances import cutoff_probabilities, spread_constants

B = 4
GAP = 3.0
positive = st.floats(0.1, 10.0)
vectors = arrays(np.float64, B, elements=positive)
horizons = st.integers(1, 10_000)
PROBLEM = {
    "L0": spread_constants(B),
    "L1": spread_constants(B),
    "p": cutoff_probabilities(B),
    "K": horizons,
    "low": vectors,
    "wider": vectors,
}


@given(
    **PROBLEM,
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


@given(**PROBLEM)
def test_repaired_radii_carry_importance_weights(
    L0: np.ndarray, L1: np.ndarray, p: np.ndarray, K: int, low: np.ndarray, wider: np.ndarray
) -> None:
    """Both conditions times P(i in S), and the mean of L0/L1 given i in S."""
    high, beta, F = low + wider, (K + 1) ** (-1 / 2), np.cumsum(p)
    sampler, smoothness = samplers.Progressive(p), Smoothness.progressive(L0, L1)
    printed = admissible_eta(sampler, smoothness, K, low, high)
    repaired = admissible_eta(sampler, smoothness, K, low, high, repaired=True)
    M = sum(p[s] * L1[s:, s].max() for s in range(B))
    for i in range(B):
        E1 = sum(p[s] * L1[i, s] for s in range(i + 1))
        first = F[i] * (K + 1) ** (1 / 2) / (4 * E1 * M)
        second = low[i] * p[0] / (16 * high[i] * (1 - beta) * E1 * M)
        assert repaired[i] ** 2 == pytest.approx(min(first, second, 1.0), rel=1e-9)
    assert (repaired <= printed * (1 + 1e-12)).all()
    assert (repaired >= printed * np.sqrt(F) * (1 - 1e-12)).all()
    rule = rules.Horizon(K, printed, reached=np.minimum(F, 1.0))
    lengths = [rule.length(i, tuple(range(B)), None, None) for i in range(B)]
    assert (lengths <= horizon_radii(repaired, K) * (1 + 1e-9)).all()

    bounds = [
        stochastic_bound(sampler, smoothness, GAP, K, repaired, 1.0, low, high, repaired=each)
        for each in (False, True)
    ]
    same = ("gap", "start", "noise")
    assert all(bounds[0].terms[name] == bounds[1].terms[name] for name in same)
    E0 = np.array([sum(p[s] * L0[i, s] for s in range(i + 1)) for i in range(B)])
    E1s = np.array([sum(p[s] * L1[i, s] for s in range(i + 1)) for i in range(B)])
    given = [sum(p[s] / F[i] * L0[i, s] / L1[i, s] for s in range(i + 1)) for i in range(B)]
    mean = (F * repaired).mean()
    drift = (2 * high / low * repaired**2) @ (E0 + E1s * given) / ((K + 1) ** (1 / 4) * mean)
    assert bounds[1].drift == pytest.approx(drift, rel=1e-9)


@given(L0=spread_constants(B), K=horizons)
def test_full_updates_need_no_repair(L0: np.ndarray, K: int) -> None:
    full, smoothness = samplers.Full(), Smoothness.progressive(L0, L0)
    eta = [
        admissible_eta(full, smoothness, K, 1.0, 2.0, repaired=each).tolist()
        for each in (False, True)
    ]
    assert eta[0] == eta[1]


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


shares_of = st.lists(st.floats(0.01, 1.0), min_size=0, max_size=4).map(lambda q: [*sorted(q), 1.0])
DRAWS: list[PartsDraws] = ["systematic", "independent"]


def counted(q: list[float], m: int, draws: PartsDraws, steps: int) -> np.ndarray:
    """In how many parts each layer was active, a row per step, with the real sampler."""
    sampler, rng = samplers.Progressive(np.diff(q, prepend=0.0)), np.random.default_rng(0)
    counts = np.zeros((steps, len(q)))
    for row in counts:
        if draws == "systematic":
            sets = sampler.sample_parts(len(q), m, rng)
        else:
            sets = tuple(sampler.sample(len(q), rng) for _ in range(m))
        for layers in sets:
            row[list(layers)] += 1
    return counts


def assert_mean(drawn: np.ndarray, expected: float) -> None:
    error = drawn.std() / np.sqrt(drawn.size)
    assert abs(drawn.mean() - expected) <= 5 * error + 1e-9


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("m", [1, 2, 4, 7])
def test_parts_have_the_probabilities_and_variances_of_the_real_sampler(
    draws: PartsDraws, m: int
) -> None:
    q = [0.05, 0.2, 0.25, 0.6, 1.0]
    found, counts = parts_variance(q, m, draws), counted(q, m, draws, 4000)
    noise = np.random.default_rng(1).standard_normal((*counts.shape, m))
    for i, N in enumerate(counts.T):
        assert_mean(N >= 1, found.moves[i])
        assert_mean(m / N[N >= 1], found.factor[i])
        # the mean over active parts, each the mean of n/m = 1 examples of variance 1: n = m
        mean = np.array([x[: int(n)].mean() for x, n in zip(noise[:, i], N, strict=True) if n])
        assert_mean(mean**2, found.factor[i] / m)


@pytest.mark.parametrize("draws", DRAWS)
def test_the_union_of_the_parts_is_drawn_as_the_theorem_is_told(draws: PartsDraws) -> None:
    q, m = [0.1, 0.15, 0.5, 1.0], 3
    counts = counted(q, m, draws, 4000)
    expected = distribution_of(parts_variance(q, m, draws).sampler, 4)
    lowest = (counts >= 1).argmax(axis=1)
    for s in range(4):
        assert_mean(lowest == s, expected.get(tuple(range(s, 4)), 0.0))


@given(shares_of, st.integers(1, 12))
def test_independent_draws_are_binomial(q: list[float], m: int) -> None:
    found = parts_variance(q, m, "independent")
    k = np.arange(1, m + 1)
    for i, share in enumerate(q):
        pmf = binom.pmf(k, m, share)
        assert found.moves[i] == pytest.approx(pmf.sum(), rel=1e-9)
        assert found.factor[i] == pytest.approx(m * (pmf / k).sum() / pmf.sum(), rel=1e-9)


@given(shares_of, st.integers(1, 64))
def test_systematic_sampling_starves_least_and_wastes_little(q: list[float], m: int) -> None:
    found, independent = parts_variance(q, m), parts_variance(q, m, "independent")
    assert (found.moves >= independent.moves - 1e-12).all()
    often = m * np.array(q) >= 1
    assert (found.moves[often] == 1).all()
    assert (found.factor[often] * np.array(q)[often] <= 1.125 + 1e-12).all()
    assert (found.factor[often] * np.array(q)[often] >= 1 - 1e-12).all()
    assert (found.factor[~often] == m).all()


def test_shares_in_whole_parts_have_the_variance_of_their_examples() -> None:
    sampler = samplers.Shares([0.25, 0.5, 1.0])
    q = sampler.expected_parts(3, 4) / 4
    found = parts_variance(q, 4)
    assert found.moves.tolist() == [1.0, 1.0, 1.0]
    assert found.factor.tolist() == [4.0, 2.0, 1.0]
    # 1.5 parts of 6: one or two with equal chances, 6 (1/2 + 1/4), 1.125 times as much as 1 / q
    assert parts_variance([0.25, 1.0], 6).factor[0] == 4.5 == 1.125 * 4


def test_one_part_is_the_paper() -> None:
    for draws in DRAWS:
        found = parts_variance([0.25, 0.5, 1.0], 1, draws)
        np.testing.assert_allclose(found.moves, [0.25, 0.5, 1.0], rtol=1e-12)
        np.testing.assert_allclose(found.factor, 1.0, rtol=1e-12)


def test_the_bound_of_a_step_in_parts_moves_every_layer() -> None:
    smoothness, n, s = Smoothness.progressive(np.ones((3, 3)), np.ones((3, 3))), 64, 2.0
    shares = parts_variance([0.25, 0.5, 1.0], 4)
    sigma = s * np.sqrt(shares.factor / n)
    parts = stochastic_bound(shares.sampler, smoothness, GAP, 99, 0.1, sigma, 1.0, 2.0)
    full = stochastic_bound(samplers.Full(), smoothness, GAP, 99, 0.1, s / n**0.5, 1.0, 2.0)
    assert parts.gap == pytest.approx(full.gap)
    assert parts.drift == pytest.approx(full.drift)
    assert parts.noise == pytest.approx(full.noise * (2 + 2**0.5 + 1) / 3)


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
        (lambda: parts_variance([0.5, 1.0], 0), "parts must be a whole number of at least 1"),
        (lambda: parts_variance([0.5, 0.9], 2), "shares must end with 1"),
        (
            lambda: parts_variance([1.0], 2, "random"),  # type: ignore[arg-type]
            "draws must be one of independent, systematic, got 'random'",
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


def test_constants_that_no_number_of_steps_makes_up_for_are_refused() -> None:
    smoothness = Smoothness.separable([1e300, 1e300], [1.0, 1.0])
    with pytest.raises(ValueError, match="iterations is larger than any float"):
        theory.iterations_stochastic(
            samplers.Full(), smoothness, theory.StochasticCase(1e300, 1e300), 1e-300
        )
