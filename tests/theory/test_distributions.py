"""A sampler or a mapping: marginals and probabilities of the sets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np
import pytest

from dropmuon import samplers
from dropmuon.samplers import Sampler
from dropmuon.theory.costs import Costs, expected_cost
from dropmuon.theory.distributions import distribution_of, marginals_of, members
from tests.theory.samplers_of_six import SAMPLERS, B


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_distribution_of_each_sampler_has_its_marginals(
    sampler: Sampler, progress: float
) -> None:
    distribution = distribution_of(sampler, B, progress)
    F, Q = marginals_of(distribution, B)
    expected_F, expected_Q = sampler.marginals(B, progress)
    np.testing.assert_allclose(F, expected_F, atol=1e-12)
    np.testing.assert_allclose(Q, expected_Q, atol=1e-12)
    assert math.fsum(distribution.values()) == pytest.approx(1.0, abs=1e-12)
    assert set(distribution) <= set(sampler.support(B))


def test_sets_with_equal_marginals_keep_their_own_probabilities() -> None:
    e, u = 0.1, 1 / 6
    pairs: dict[Iterable[SupportsIndex], float] = {
        (0, 1): u,
        (0, 2): u - e,
        (0, 3): u + e,
        (1, 2): u + e,
        (1, 3): u - e,
        (2, 3): u,
    }
    skewed = samplers.Arbitrary(pairs)
    nice = samplers.Nice(2)
    for left, right in zip(skewed.marginals(4), nice.marginals(4), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-15)
    assert distribution_of(skewed, 4) == pytest.approx(pairs)
    assert set(distribution_of(nice, 4).values()) == {u}


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ({(0,): 0.5}, "distribution must sum to 1, got 0.5"),
        ({(0,): 1.5, (1,): -0.5}, "probabilities of at least 0, got -0.5"),
        ({(0,): math.nan}, "probabilities of at least 0, got nan"),
        ({(0, 2): 1.0}, "layer indices from 0 to 1"),
        ({(): 1.0}, "must name at least one layer"),
        ({(0, 0): 1.0}, "must name a layer once"),
        ({(0, 1): 0.5, (1, 0): 0.5}, "must name a set once"),
        ({("a",): 1.0}, "must hold layer indices"),
    ],
)
def test_bad_distributions_are_refused(distribution: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expected_cost(distribution, Costs(1, [1, 1], [1, 1]))


def test_a_sampler_whose_distribution_is_none_is_refused() -> None:
    class Half(samplers.Full):
        def distribution(
            self, num_layers: int, progress: float = 0.0
        ) -> dict[tuple[int, ...], float]:
            return {tuple(range(num_layers)): 0.5}

    with pytest.raises(ValueError, match=r"distribution must sum to 1, got 0\.5"):
        distribution_of(Half(), 2)


def test_what_is_neither_a_sampler_nor_a_mapping_is_refused() -> None:
    for function in (distribution_of, marginals_of):
        with pytest.raises(TypeError, match=r"must be a Sampler or map sets .*, got 'full'"):
            function("full", 2)  # type: ignore[arg-type]


def test_members_has_a_row_per_set_and_a_column_per_layer() -> None:
    assert members([(0, 2), (1,)], 3).tolist() == [[True, False, True], [False, True, False]]
