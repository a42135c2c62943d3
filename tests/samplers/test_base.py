"""Facts about every sampler, over the table of cases, and about the base class."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

import dropmuon.samplers as library
from dropmuon.samplers import (
    Arbitrary,
    Full,
    Nice,
    Partition,
    Progressive,
    RandomSubset,
    Sampler,
    Serial,
    Submodel,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)

DRAWS = 20_000


def within_five_sigma(frequency, probability):
    sigma = np.sqrt(np.clip(probability * (1 - probability), 0, None) / DRAWS)
    return np.abs(frequency - probability) <= 5 * sigma + 1e-12


def test_draws_follow_the_distribution_and_its_marginals(case):
    rng = np.random.default_rng(2024)
    drawn = Counter(case.sampler.sample(case.num_layers, rng, case.progress) for _ in range(DRAWS))
    assert set(drawn) <= set(case.sampler.support(case.num_layers))
    for chosen, probability in case.distribution.items():
        assert within_five_sigma(drawn[chosen] / DRAWS, probability), chosen
    F, Q = case.sampler.marginals(case.num_layers, case.progress)
    for i in range(case.num_layers):
        reached = sum(n for s, n in drawn.items() if min(s) <= i) / DRAWS
        moved = sum(n for s, n in drawn.items() if i in s) / DRAWS
        assert within_five_sigma(reached, F[i]), f"F[{i}]"
        assert within_five_sigma(moved, Q[i]), f"Q[{i}]"


def test_marginals_equal_sums_over_the_written_out_distribution(case):
    F, Q = case.sampler.marginals(case.num_layers, case.progress)
    law = case.distribution.items()
    layers = range(case.num_layers)
    np.testing.assert_allclose(
        F, [sum(p for s, p in law if min(s) <= i) for i in layers], rtol=1e-13
    )
    np.testing.assert_allclose(Q, [sum(p for s, p in law if i in s) for i in layers], rtol=1e-13)


def test_support_is_the_written_out_one(case):
    support = case.sampler.support(case.num_layers)
    assert len(set(support)) == len(support)
    assert set(support) == set(case.distribution)
    for chosen in support:
        assert list(chosen) == sorted(set(chosen))
        assert all(type(layer) is int for layer in chosen)


def test_the_distribution_is_the_written_out_one(case):
    found = case.sampler.distribution(case.num_layers, case.progress)
    assert found == pytest.approx(case.distribution, rel=1e-13)
    assert all(p > 0 for p in found.values())
    assert math.fsum(found.values()) == pytest.approx(1.0, abs=1e-15 * len(found))
    order = case.sampler.support(case.num_layers)
    assert list(found) == [s for s in order if s in found]


def test_the_distribution_is_the_callers_to_change(case):
    before = case.sampler.distribution(case.num_layers, case.progress)
    found = case.sampler.distribution(case.num_layers, case.progress)
    found.clear()
    assert case.sampler.distribution(case.num_layers, case.progress) == before


def test_marginals_obey_their_laws(case):
    F, Q = case.sampler.marginals(case.num_layers, case.progress)
    assert F.dtype == Q.dtype == np.float64
    assert F.shape == Q.shape == (case.num_layers,)
    assert (Q <= F).all()
    assert (np.diff(F) >= 0).all()
    assert F[-1] == 1.0
    assert (Q > 0).all()
    mean_size = sum(p * len(s) for s, p in case.distribution.items())
    assert Q.sum() == pytest.approx(mean_size, rel=1e-13)


def test_marginals_are_the_callers_to_change(case):
    before = case.sampler.marginals(case.num_layers, case.progress)
    F, Q = case.sampler.marginals(case.num_layers, case.progress)
    F[:] = -1
    assert (Q >= 0).all()
    Q[:] = -1
    for old, new in zip(
        before, case.sampler.marginals(case.num_layers, case.progress), strict=True
    ):
        np.testing.assert_array_equal(old, new)


def test_draws_are_a_function_of_the_generator_only(case):
    def draws(sampler):
        rng = np.random.default_rng(7)
        return [sampler.sample(case.num_layers, rng, case.progress) for _ in range(200)]

    np.random.seed(0)
    first = draws(case.sampler)
    np.random.seed(1)
    assert draws(case.sampler) == first
    assert draws(copy.deepcopy(case.sampler)) == first


def test_copies_are_equal_and_interchangeable(case):
    case.sampler.sample(case.num_layers, np.random.default_rng(0), case.progress)
    for twin in (copy.deepcopy(case.sampler), pickle.loads(pickle.dumps(case.sampler))):
        assert twin == case.sampler
        assert repr(twin) == repr(case.sampler)
        assert hash(twin) == hash(case.sampler)


def test_repr_is_stable_and_complete(case):
    text = repr(case.sampler)
    assert " at 0x" not in text
    if "Custom" not in text:
        assert eval(text, vars(library).copy()) == case.sampler


def test_samplers_cannot_be_changed(case):
    for name in [*vars(case.sampler), "anything"]:
        with pytest.raises(AttributeError):
            setattr(case.sampler, name, 1)


def test_check_accepts_and_needs_progress_matches_the_marginals(case):
    case.sampler.check(case.num_layers)
    start, end = (case.sampler.marginals(case.num_layers, x)[1] for x in (0.0, 1.0))
    assert case.sampler.needs_progress == bool((start != end).any())


def test_no_layers_and_progress_out_of_range_are_refused(case):
    rng = np.random.default_rng(0)
    for use in (
        lambda: case.sampler.sample(0, rng),
        lambda: case.sampler.support(0),
        lambda: case.sampler.marginals(0),
        lambda: case.sampler.distribution(0),
        lambda: case.sampler.check(0),
    ):
        with pytest.raises(
            ValueError, match="num_layers must be a whole number of at least 1, got 0; give"
        ):
            use()
    for progress in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="progress must be between 0 and 1, got"):
            case.sampler.sample(case.num_layers, rng, progress)
        with pytest.raises(ValueError, match="progress must be between 0 and 1, got"):
            case.sampler.marginals(case.num_layers, progress)
        with pytest.raises(ValueError, match="progress must be between 0 and 1, got"):
            case.sampler.distribution(case.num_layers, progress)


def test_the_base_class_cannot_be_made():
    with pytest.raises(TypeError):
        Sampler()  # type: ignore[abstract]


@dataclass(frozen=True)
class Own(Sampler):
    """A user's sampler with the methods that every sampler must have, and no more."""

    law: tuple[tuple[tuple[int, ...], float], ...]

    def sample(self, num_layers, rng, progress=0.0):
        return self.law[0][0]

    def support(self, num_layers):
        return tuple(layers for layers, _ in self.law)

    def marginals(self, num_layers, progress=0.0):
        F = [sum(p for s, p in self.law if s[0] <= i) for i in range(num_layers)]
        Q = [sum(p for s, p in self.law if i in s) for i in range(num_layers)]
        return np.array(F), np.array(Q)

    def check(self, num_layers):
        pass

    @property
    def needs_progress(self):
        return False


def test_sets_of_different_cutoffs_have_the_steps_of_f_as_their_distribution():
    law = {(0, 2): 0.25, (1, 2, 3): 0.5, (3,): 0.25}
    assert Own(tuple(law.items())).distribution(4) == law
    assert Own((((0, 1), 1.0), ((1,), 0.0))).distribution(2) == {(0, 1): 1.0}


def test_sets_that_share_a_cutoff_need_a_distribution_of_their_own():
    law = {(0,): 0.125, (0, 1): 0.25, (1,): 0.625}
    with pytest.raises(
        NotImplementedError, match=r"^Own must define distribution\(num_layers, pro"
    ):
        Own(tuple(law.items())).distribution(2)

    class Telling(Own):
        def distribution(self, num_layers, progress=0.0):
            return dict(self.law)

    assert Telling(tuple(law.items())).distribution(2) == law


def test_a_distribution_that_cannot_be_listed_is_refused_with_the_remedy():
    for sampler, b in ((Nice(1000), 2000), (RandomSubset(), 17)):
        with pytest.raises(ValueError, match=r"use marginals\(\), which needs no support"):
            sampler.distribution(b)


@pytest.mark.parametrize("p", [uniform, linear, exponential, epoch_shift(), epoch_shift(1.0)])
def test_equality_compares_every_setting(p):
    assert Progressive(p) == Progressive(p)
    assert Progressive(p) != Serial(p)  # type: ignore[comparison-overlap]
    assert Progressive(p) != Progressive(quadratic)
    assert Submodel(2, p) != Submodel(3, p)
    assert Partition([[0], [1]], p) != Partition([[1], [0]], p)
    assert Nice(2) != Nice(3)


def test_reprs_read_as_they_are_written():
    assert repr(Full()) == "Full()"
    assert repr(Nice(3)) == "Nice(tau=3)"
    assert repr(Progressive()) == "Progressive(probabilities=uniform)"
    assert repr(Serial("epoch-shift")) == "Serial(probabilities=epoch_shift(alpha=0.5))"
    assert (
        repr(Partition([[1, 0], [2]], np.array([0.25, 0.75])))
        == "Partition(blocks=((0, 1), (2,)), probabilities=Fixed((0.25, 0.75)))"
    )


def test_layer_indices_are_integers():
    with pytest.raises(ValueError, match="blocks must hold layer indices, got 0; give"):
        Partition([0, 1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="distribution must hold layer indices, got '0'"):
        Arbitrary({"0": 1.0})  # type: ignore[dict-item]
