"""Schedules, sizes and progress for property tests of samplers."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from dropmuon.samplers import Sampler, epoch_shift, exponential, linear, quadratic, uniform

__all__ = ["PROGRESS", "SCHEDULES", "SIZES", "assert_same_marginals", "law"]

SCHEDULES = st.one_of(
    st.sampled_from([uniform, linear, quadratic, exponential]),
    st.floats(-2, 2).map(epoch_shift),
)
SIZES = st.integers(1, 40)
PROGRESS = st.floats(0, 1)
law = settings(derandomize=True, deadline=None, max_examples=40)


def assert_same_marginals(left: Sampler, right: Sampler, b: int, progress: float = 0.0) -> None:
    for mine, other in zip(left.marginals(b, progress), right.marginals(b, progress), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
