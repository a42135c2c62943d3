"""The lemmas of the paper's proofs, on functions that satisfy their assumptions exactly.

The function is separable, f(x) = sum_i h_i(x_i) with layers of several entries and
h(x) = sum_j cosh(a x_j) - 1, or quadratic. A separable function is the one kind for which the
assumption "(L0, L1)-smoothness II" holds literally. The norm is that of the largest entry, whose
dual is the sum of magnitudes, and whose LMO is the sign.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

B, N = 4, 3
reals = st.floats(-5.0, 5.0)
positive = st.floats(0.01, 10.0)
subsets = st.sets(st.integers(0, B - 1), min_size=1).map(sorted)
points = arrays(np.float64, (B, N), elements=st.floats(-2.0, 2.0))
weights = arrays(np.float64, B, elements=positive)
TOLERANCE = 1e-9


@given(
    x=arrays(np.float64, B, elements=reals),
    y=arrays(np.float64, B, elements=reals),
    z=arrays(np.float64, B, elements=positive),
)
def test_lemma_ineq(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    """sum y^2 / z >= (sum x y)^2 / sum z x^2."""
    assume(np.abs(x).max() > 1e-3)
    assert (y**2 / z).sum() >= (x @ y) ** 2 / (z @ x**2) * (1 - TOLERANCE)


class Cosh:
    """f(x) = sum_i sum_j (cosh(a_i x_ij) - 1), with its least value 0 at 0.

    For |Gamma| <= r entrywise |sinh(a(x + Gamma)) - sinh(a x)| <= a |Gamma| cosh(a x) e^(a r) and
    cosh <= 1 + |sinh|, so in the max-entry norm and its dual, the sum over n entries,
    L0 = n a^2 e^(a r) and L1 = a e^(a r) hold for steps of at most r.
    """

    reach = 1.0

    def __init__(self, scale: np.ndarray) -> None:
        self.scale = scale
        grown = np.exp(scale * self.reach)
        self.L0, self.L1 = N * scale**2 * grown, scale * grown

    def __call__(self, x: np.ndarray) -> float:
        return float((np.cosh(self.scale[:, None] * x) - 1.0).sum())

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.scale[:, None] * np.sinh(self.scale[:, None] * x))

    def duals(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(self.gradient(x)).sum(axis=1))


functions = arrays(np.float64, B, elements=st.floats(0.1, 2.0)).map(Cosh)
steps = arrays(np.float64, (B, N), elements=st.floats(-1.0, 1.0))


@given(f=functions, x=points, step=steps, active=subsets)
def test_lemma_gen_smooth(f: Cosh, x: np.ndarray, step: np.ndarray, active: list[int]) -> None:
    """|f(X + Gamma) - f(X) - <grad, Gamma>| <= sum over S of (L0 + L1 dual) / 2 ||Gamma_i||^2."""
    moved = np.zeros_like(step)
    moved[active] = step[active]
    gradient, lengths = f.gradient(x), np.abs(moved).max(axis=1)
    change = np.abs(f.gradient(x + moved) - gradient).sum(axis=1)
    curvature = f.L0 + f.L1 * f.duals(x)
    assert (change <= curvature * lengths * (1 + TOLERANCE) + TOLERANCE).all()  # the assumption
    left = abs(f(x + moved) - f(x) - float((gradient * moved).sum()))
    right = float((curvature / 2 * lengths**2)[active].sum())
    assert left <= right * (1 + TOLERANCE) + TOLERANCE


@given(f=functions, x=points, active=subsets, weight=weights)
def test_lemmas_layer_gen_smooth_and_layer_gen_smooth3(
    f: Cosh, x: np.ndarray, active: list[int], weight: np.ndarray
) -> None:
    """Gradients are bounded by the gap: of the layers of S, and of these only."""
    duals, gap = f.duals(x)[active], f(x)
    L0, L1 = f.L0[active], f.L1[active]
    assume((duals / (L0 + L1 * duals)).max() <= f.reach)  # the step of the proof is in reach
    assert (duals**2 / (2 * (L0 + L1 * duals))).sum() <= gap * (1 + TOLERANCE) + TOLERANCE
    c = weight[active]
    right = 4 * (c * L1).max() * gap + (c * L0 / L1).sum()
    assert c @ duals <= right * (1 + TOLERANCE) + TOLERANCE


def test_lemma_layer_gen_smooth3_does_not_hold_for_layers_outside_of_the_set() -> None:
    """The slip of the proof, and its repair: f = x^2/2 + 1e-6 y^2/2 at (2, 0), S mostly {y}."""
    L0, L1 = np.array([1.0, 1e-6]), np.array([1.0, 1e-3])
    cutoffs = {0.01: np.array([1.0, 1.0]), 0.99: np.array([0.0, 1.0])}
    reached = sum(p * inside for p, inside in cutoffs.items())
    norms, gap = np.array([2.0, 0.0]), 2.0

    def mean_of_the_right_side(c: np.ndarray) -> float:
        return sum(
            p * (4 * (inside * c * L1).max() * gap + (inside * c * L0 / L1).sum())
            for p, inside in cutoffs.items()
        )

    c = np.ones(2)
    assert c @ norms > 20 * mean_of_the_right_side(c)
    assert c @ norms <= mean_of_the_right_side(c / reached)


@given(
    f=functions,
    x=points,
    noise=steps,
    active=subsets,
    radius=arrays(np.float64, B, elements=st.floats(0.01, 1.0)),
)
def test_lemma_descent2(
    f: Cosh, x: np.ndarray, noise: np.ndarray, active: list[int], radius: np.ndarray
) -> None:
    """An LMO step along any M lowers f by t dual(grad), up to M's error and the curvature."""
    gradient = f.gradient(x)
    momentum = gradient + noise
    new = x.copy()
    new[active] -= radius[active, None] * np.sign(momentum[active])
    error, duals = np.abs(gradient - momentum).sum(axis=1), f.duals(x)
    terms = 2 * radius * error - radius * duals + (f.L0 + f.L1 * duals) / 2 * radius**2
    assert f(new) <= f(x) + terms[active].sum() + TOLERANCE * (1 + f(x))


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("reached", [0.25, 1.0])
@pytest.mark.parametrize("printed_slip", [False, True])
def test_lemma_nm_rec_by_simulation(beta: float, reached: float, printed_slip: bool) -> None:
    """E||M^{k+1} - grad f(X^{k+1})||_2 stays below the lemma's four terms, at every step.

    One layer of f = L |x|^2 / 2 in the Euclidean norm, drawn with probability Q: L0 = L, L1 = 0,
    rho = 1. The proof has 1{i in S^k} in M^{k+1}, Algorithm 1 has S^{k+1}: it holds for both.
    """
    rng, L, t, sigma, runs, dimension = np.random.default_rng(0), 2.0, 0.02, 0.5, 4000, 3
    X = np.ones((runs, dimension))

    def stochastic() -> np.ndarray:
        return L * X + sigma / dimension**0.5 * rng.normal(size=X.shape)

    M = stochastic()
    start = np.linalg.norm(M - L * X, axis=1).mean()
    active = rng.random(runs) < reached
    found, bounds = [], []
    for k in range(60):
        length = np.linalg.norm(M, axis=1, keepdims=True)
        X = X - np.where(active[:, None], t * M / length, 0.0)
        drawn = rng.random(runs) < reached
        follows = active if printed_slip else drawn
        M = np.where(follows[:, None], (1 - beta) * M + beta * stochastic(), M)
        active = drawn
        found.append(np.linalg.norm(M - L * X, axis=1).mean())
        # E[(1 - 1{i in S} beta) L0_{i,S}], where L0_{i,S} = 0 without i: Q (1 - beta) L.
        drift = t * reached * (1 - beta) * L / (beta * reached)
        bounds.append((1 - reached * beta) ** (k + 1) * start + drift + sigma * beta**0.5)
    error = sigma / runs**0.5
    assert (np.array(found) <= np.array(bounds) + 3 * error).all()
    assert found[-1] > 0.1 * bounds[-1]  # and is not far above
