"""The line above all points with the least excess, against its linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from dropmuon.planning.envelope import upper_envelopes


def excess_by_program(duals: np.ndarray, ratios: np.ndarray, counts: np.ndarray) -> float:
    used = counts > 0
    left = -np.stack([np.ones(used.sum()), duals[used]], axis=1)
    solved = linprog([counts.sum(), counts @ duals], left, -ratios[used], method="highs")
    assert solved.status == 0
    return float(solved.fun)


@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_envelope_solves_its_linear_program(n, seed):
    rng = np.random.default_rng(seed)
    duals, ratios = rng.integers(0, 6, n) / 2.0, rng.integers(0, 6, n) / 3.0
    counts = np.concatenate([np.ones((1, n), np.int64), rng.multinomial(n, [1 / n] * n, size=3)])
    l0, l1 = upper_envelopes(duals, ratios, counts)
    for k, row in enumerate(counts):
        line = l0[k] + l1[k] * duals
        assert min(l0[k], l1[k]) >= 0
        assert (line[row > 0] >= ratios[row > 0] - 1e-9).all()
        excess = row.sum() * l0[k] + (row @ duals) * l1[k]
        assert excess == pytest.approx(excess_by_program(duals, ratios, row), abs=1e-7)


def test_equal_gradients_tell_nothing_of_l1():
    l0, l1 = upper_envelopes(np.full(4, 2.0), np.arange(4.0), np.ones((1, 4), np.int64))
    assert (l0[0], l1[0]) == (3.0, 0.0)
