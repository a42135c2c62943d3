"""The paper's metrics against laws and against numbers worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon.lab.analysis.metrics import finals, speedups, time_to_target
from dropmuon.lab.analysis.series import SPLITS, UNITS, interval, normalized_curves
from dropmuon.lab.run import Evaluation

TARGETS = [60.0, 80.0, 90.0]


def trial(
    method: str, accuracies: list[float], pace: float = 1.0, seed: int = 0
) -> list[Evaluation]:
    """One evaluation every 10 steps, each step taking `pace` seconds and 1000 operations more."""
    return [
        Evaluation(
            method=method,
            seed=seed,
            step=10 * i,
            epoch=float(i),
            seconds=10 * i * pace,
            operations=10_000 * i * pace,
            train_accuracy=accuracy,
            train_loss=1.0,
            test_accuracy=accuracy / 2,
            test_loss=1.0,
        )
        for i, accuracy in enumerate(accuracies)
    ]


def by_method(found, method: str):
    return {each.target: each for each in found if each.method == method}


accuracies = st.lists(st.floats(0, 1), min_size=2, max_size=8)
paces = st.floats(0.01, 100)


@st.composite
def comparisons(draw) -> list[Evaluation]:
    """Up to three methods on up to three seeds, some trials short or missing."""
    found = []
    for method in ("muon", "a", "b"):
        for seed in range(draw(st.integers(0, 3))):
            found += trial(method, draw(accuracies), draw(paces), seed)
    return found


def test_the_first_evaluation_at_the_target_counts_without_interpolation():
    run = trial("muon", [0.1, 0.5, 0.9, 0.7], pace=2.0)
    assert time_to_target(run, 50) == 20.0
    assert time_to_target(run, 51) == 40.0
    assert time_to_target(run, 90, unit="operations") == 40_000
    assert time_to_target(run, 91) is None
    assert time_to_target(run, 45, split="test") == 40.0
    assert time_to_target([], 50) is None


@pytest.mark.parametrize("target", range(1, 101))
def test_an_accuracy_that_is_the_target_reaches_it(target):
    assert time_to_target(trial("muon", [0.0, (target * 100) / 10_000]), target) == 10.0


@given(accuracies, st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_higher_target_is_never_reached_sooner(values, one, other):
    low, high = sorted((one, other))
    run = trial("muon", values)
    soon, late = time_to_target(run, low), time_to_target(run, high)
    assert late is None or (soon is not None and soon <= late)


def test_ratios_are_averaged_over_seeds_and_misses_are_counted():
    runs = [
        *trial("muon", [0.1, 0.5, 0.9], seed=0),
        *trial("muon", [0.1, 0.9, 0.9], seed=1),
        *trial("muon", [0.1, 0.9, 0.9], seed=2),
        *trial("a", [0.1, 0.9, 0.9], seed=0),
        *trial("a", [0.1, 0.5, 0.9], seed=1),
        *trial("a", [0.1, 0.5, 0.5], seed=2),
    ]
    found = by_method(speedups(runs, "muon", TARGETS), "a")[80.0]
    assert found.ratios == {0: 2.0, 1: 0.5}
    assert found.ratio == 1.25
    assert (found.low, found.high) == (0.5, 2.0)
    assert (found.reached, found.seeds, found.baseline_reached, found.baseline_seeds) == (
        2,
        3,
        3,
        3,
    )
    assert found.time == 15.0


def test_one_seed_has_no_interval_and_a_missing_baseline_no_ratio():
    alone = by_method(speedups(trial("a", [0.1, 0.9]), "muon", TARGETS), "a")[90.0]
    assert (alone.ratio, alone.reached, alone.baseline_seeds) == (None, 1, 0)
    runs = trial("a", [0.1, 0.9]) + trial("muon", [0.1, 0.5, 0.9])
    one = by_method(speedups(runs, "muon", TARGETS), "a")[90.0]
    assert (one.ratio, one.low, one.high) == (2.0, None, None)


def test_a_target_that_the_untrained_model_reaches_is_reached_equally_soon():
    runs = trial("muon", [0.7, 0.9]) + trial("a", [0.7, 0.9])
    assert by_method(speedups(runs, "muon", [60.0]), "a")[60.0].ratio == 1.0


@given(comparisons())
def test_a_method_against_itself_is_neither_sooner_nor_later(runs):
    for each in speedups(runs, "muon", TARGETS):
        if each.method == "muon":
            assert set(each.ratios.values()) <= {1.0}
            assert each.ratio is None or each.ratio == each.baseline_reached / each.reached == 1
            assert each.reached == each.baseline_reached


@given(comparisons(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_of_time_changes_no_ratio_and_no_normalised_curve(runs, scale):
    scaled = [replace(e, seconds=e.seconds * scale, operations=e.operations * scale) for e in runs]
    for unit in UNITS:
        ratios = [each.ratios for each in speedups(runs, "muon", TARGETS, "train", unit)]
        assert ratios == [e.ratios for e in speedups(scaled, "muon", TARGETS, "train", unit)]
        assert normalized_curves(runs, "muon", "train", unit) == normalized_curves(
            scaled, "muon", "train", unit
        )


@given(comparisons(), st.randoms(use_true_random=False))
def test_the_order_of_the_records_is_irrelevant(runs, shuffler: random.Random):
    mixed = list(runs)
    shuffler.shuffle(mixed)

    def everything(given_runs):
        return {
            *(repr(e) for e in speedups(given_runs, "muon", TARGETS)),
            *(repr(e) for e in normalized_curves(given_runs, "muon")),
            *(repr(e) for e in finals(given_runs, "muon")),
        }

    assert everything(runs) == everything(mixed)


@given(comparisons())
def test_the_normalised_baseline_ends_at_one_and_bands_hold_their_seeds(runs):
    for split in SPLITS:
        for curve in normalized_curves(runs, "muon", split):
            assert curve.method != "muon" or curve.end == pytest.approx(1.0)
            assert len(curve.time) == len(curve.mean) == len(curve.low) == len(curve.high) == 101
            assert (curve.time[0], curve.time[-1]) == (0.0, 1.0)
            assert np.all(np.array(curve.low) <= np.array(curve.high) + 1e-12)
            assert min(curve.low) + 1e-12 >= 0
            assert max(curve.high) <= 1 + 1e-12


def test_a_method_that_ends_earlier_is_flat_and_one_that_ends_later_is_cut():
    runs = [
        *trial("muon", [0.0, 0.5, 1.0]),
        *trial("quick", [0.0, 0.4, 0.8], pace=0.5),
        *trial("slow", [0.0, 0.5, 1.0], pace=2.0),
    ]
    curves = {curve.method: curve for curve in normalized_curves(runs, "muon", grid=5)}
    assert curves["muon"].mean == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert curves["quick"].mean == pytest.approx((0.0, 0.4, 0.8, 0.8, 0.8))
    assert curves["slow"].mean == (0.0, 0.125, 0.25, 0.375, 0.5)
    assert (curves["quick"].end, curves["slow"].end) == (0.5, 2.0)
    with pytest.raises(ValueError, match="grid must be at least 2"):
        normalized_curves(runs, "muon", grid=1)


def test_an_interrupted_trial_takes_no_part_in_averages():
    runs = [
        *trial("muon", [0.1, 0.5, 0.9], seed=0),
        *trial("muon", [0.1], seed=1),
        *trial("a", [0.1, 0.6, 0.8], seed=0),
        *trial("a", [0.1, 0.2, 0.3], seed=1),
        *trial("b", [0.1, 0.6], seed=0),
    ]
    curves = {curve.method: curve for curve in normalized_curves(runs, "muon")}
    assert {method: curve.seeds for method, curve in curves.items()} == {"muon": 1, "a": 1}
    assert curves["a"].mean[-1] == 0.8
    ends = {final.method: final for final in finals(runs, "muon")}
    assert (ends["muon"].seeds, ends["muon"].train.mean) == (1, 0.9)
    assert ends["b"].seconds_share is None
    assert ends["b"].step_seconds_share == 1.0


def test_final_numbers_are_those_of_the_last_evaluations():
    runs = trial("muon", [0.1, 0.9], pace=2.0) + trial("a", [0.1, 0.6]) + trial("a", [0, 0.8], 1, 1)
    muon, a = finals(runs, "muon")
    assert (a.train.mean, a.train.least, a.train.greatest) == pytest.approx((0.7, 0.6, 0.8))
    assert a.test.mean == pytest.approx(0.35)
    assert (a.seconds, a.seconds_per_step, a.seconds_share, a.step_seconds_share) == (
        10.0,
        1.0,
        0.5,
        0.5,
    )
    assert (muon.operations, muon.operations_per_step, muon.operations_share) == (20_000, 2000, 1.0)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_the_interval_lies_within_the_values_and_is_the_same_every_time(values):
    low, high = interval(values)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert (low, high) == interval(values)
    assert interval(values[:1]) == (None, None)


def test_unknown_splits_and_units_are_refused_with_the_accepted_ones():
    with pytest.raises(ValueError, match="split must be one of test, train, got 'trian'"):
        time_to_target(trial("muon", [0.1]), 50, split="trian")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'seconds'"):
        time_to_target(trial("muon", [0.9]), 50, unit="second")  # type: ignore[arg-type]
