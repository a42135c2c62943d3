"""Random constants and costs of progressive training, and costs from the paper's formulas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from dropmuon.theory.costs import Costs

Array = npt.NDArray[np.float64]

amounts = st.floats(0.01, 100.0).map(lambda x: round(x, 3))


@st.composite
def matrices(draw: st.DrawFn, min_layers: int = 1, max_layers: int = 8) -> Array:
    """Draw constants that do not rise with the cutoff, often with ties."""
    b = draw(st.integers(min_layers, max_layers))
    rows = [draw(st.lists(amounts, min_size=b, max_size=b)) for _ in range(b)]
    return np.maximum.accumulate(np.array(rows)[:, ::-1], axis=1)[:, ::-1].copy()


@st.composite
def problems(draw: st.DrawFn, min_layers: int = 1, max_layers: int = 8) -> tuple[Array, Costs]:
    """Draw constants and costs that fall strictly with the cutoff."""
    constants = draw(matrices(min_layers, max_layers))
    return constants, draw(step_costs(len(constants)))


@st.composite
def step_costs(draw: st.DrawFn, num_layers: int) -> Costs:
    """Draw positive costs of this many layers."""
    layer = draw(st.lists(amounts, min_size=num_layers, max_size=num_layers))
    sharp = draw(st.lists(amounts, min_size=num_layers, max_size=num_layers))
    return Costs(draw(amounts), layer, sharp)


@st.composite
def spread_constants(draw: st.DrawFn, num_layers: int) -> Array:
    """Draw constants L[i, s] > 0 that fall strictly with the cutoff s."""
    steps = draw(arrays(np.float64, (num_layers, num_layers), elements=st.floats(0.1, 10.0)))
    return np.tril(steps[:, ::-1].cumsum(axis=1)[:, ::-1])


@st.composite
def cutoff_probabilities(draw: st.DrawFn, num_layers: int) -> Array:
    """Draw positive probabilities of the cutoffs."""
    p = draw(arrays(np.float64, num_layers, elements=st.floats(0.01, 1.0)))
    normal: Array = p / p.sum()
    return normal


def simplex(seed: int, count: int, size: int) -> Array:
    """Return random probability vectors, many of them near the faces; the first entry positive."""
    rng = np.random.default_rng(seed)
    p = np.concatenate([rng.dirichlet(np.full(size, a), count) for a in (0.3, 1.0)])
    p = np.maximum(p, 0.0) + 1e-6 * (np.arange(size) == 0)
    normal: Array = p / p.sum(axis=1, keepdims=True)
    return normal


def random_problem(seed: int, num_layers: int) -> tuple[Array, Costs]:
    """Return constants with rows of very different size, and costs."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.exponential(size=(num_layers, num_layers)), axis=1)[:, ::-1]
    constants: Array = rows * np.exp(rng.normal(size=(num_layers, 1)))
    return constants, Costs(rng.exponential(), *rng.exponential(size=(2, num_layers)))


def tails(costs: Costs) -> Array:
    """Return d_j = c_ov + sum_{i >= j} (c_i + c_i^sharp)."""
    both = costs.layer + costs.sharp
    return np.array([costs.overhead + both[s:].sum() for s in range(len(both))])


def all_costs(p: Array, L1: Array, d: Array) -> Array:
    """Return the 1/eps cost of every row of p, from eq. fl1l0l1."""
    rates = p.cumsum(axis=1) ** 2 / (p @ np.tril(L1).T)
    costs: Array = (p @ d) / rates.min(axis=1)
    return costs


def all_squared_costs(p: Array, L0: Array, L1: Array, d: Array) -> Array:
    """Return the 1/eps^2 cost of every row of p, from eq. cost_opt_prob_e2."""
    E0, E1, F = p @ np.tril(L0).T, p @ np.tril(L1).T, p.cumsum(axis=1)
    costs: Array = (F**2 * E0 / E1**2).sum(axis=1) / (F**2 / E1).min(axis=1) ** 2 * (p @ d)
    return costs


def brute_force(L1: Array, d: Array, seed: int) -> float:
    """Return the least 1/eps cost over many points, the best of them polished by SLSQP."""
    L1 = np.tril(L1)
    p = np.concatenate([np.eye(len(L1))[:1], simplex(seed, 10_000, len(L1))])
    values = all_costs(p, L1, d)
    best = float(values.min())
    for k in np.argsort(values)[:6]:
        rate = (p[k].cumsum() ** 2 / (L1 @ p[k])).min()
        result = minimize(
            lambda q: d @ q / d[0],
            p[k] / rate,
            method="SLSQP",
            bounds=[(L1[0, 0], None)] + [(0.0, None)] * (len(L1) - 1),
            constraints={"type": "ineq", "fun": lambda q: q.cumsum() ** 2 / (L1 @ q) - 1},
            options={"maxiter": 200, "ftol": 1e-12},
        )
        polished = np.maximum(result.x, 0.0)
        if np.isfinite(polished).all() and polished[0] > 0:
            best = min(best, float(all_costs((polished / polished.sum())[None], L1, d)[0]))
    return best
