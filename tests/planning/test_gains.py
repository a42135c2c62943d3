"""What parts, turns and smaller batches gain, where costs and noise are given."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon import samplers
from dropmuon.planning import MeasuredCosts, NoiseEstimate, Option
from dropmuon.planning.gains import QUALITY, WORTHWHILE, Gains
from dropmuon.samplers.allocation import CAUTION, DOUBT
from dropmuon.samplers.base import FloatArray
from dropmuon.theory import StepCosts
from tests.planning.synthetic_plans import costs_of, layer_names, noise_of

ratios = st.lists(st.floats(1e-3, 30.0), min_size=2, max_size=5)


def costs(b: int, update: float = 0.0, forward: float = 1.0) -> MeasuredCosts:
    """Return costs of b equal layers with a backward of 2, of which the weights take half."""
    ones = np.ones(b)
    parts = StepCosts(0.0, forward * ones, ones, update * ones, weight=ones)
    return replace(costs_of(layer_names(b)), seconds=parts)


def gains(nu: list[float], update: float = 0.0, steps: int = 40, examples: int = 1024) -> Gains:
    return Gains(costs(len(nu), update), noise_of(nu, examples=examples), steps)


def speedup(nu: npt.ArrayLike, shares: FloatArray) -> float:
    """Return the gain at costs of 1 forward and 2 backward, with as many steps as layers need."""
    noise, below = np.asarray(nu)[:-1], shares[:-1]
    steps = np.mean((1 + noise / below) / (1 + noise))
    return float(3 / (1 + 2 * shares.mean()) / steps)


def shares_of(option: Option) -> FloatArray:
    assert isinstance(option.sampler, samplers.Shares)
    return np.array(option.sampler.shares)


@given(ratios)
def test_the_gain_of_parts_is_that_of_the_law_and_no_equal_shares_are_better(
    nu: list[float],
) -> None:
    found, b = gains(nu), len(nu)
    cautious = CAUTION * np.array(nu)
    flat = [np.append(np.full(b - 1, k / 8), 1.0) for k in range(1, 8)]
    best = max(speedup(cautious, shares) for shares in flat)
    parts = [option for option in found.options if "parts" in option.settings]
    if not parts:
        assert best <= 1.0 + 1e-12
        return
    assert parts[0].fresh.speedup == pytest.approx(speedup(cautious, shares_of(parts[0])))
    assert parts[0].fresh.speedup >= max(best, 1.0) / 1.01**2


@given(st.floats(1e-3, 0.2), st.integers(2, 6))
def test_equal_layers_have_about_the_shares_of_theory(nu: float, b: int) -> None:
    """q = sqrt(nu F / B), rounded to an eighth, where all layers but the head have one share."""
    fixed, below = b + 2.0, 2.0 * (b - 1)
    best = min(1.0, math.sqrt(CAUTION * nu * fixed / below))
    parts = gains([nu] * b).options[1]
    assert abs(shares_of(parts)[0] - best) <= 0.2
    assert len(set(shares_of(parts)[:-1])) == 1


@given(ratios)
def test_intervals_hold_the_gain_and_that_of_other_cautions(nu: list[float]) -> None:
    found = gains(nu)
    for option in found.options:
        assert option.fresh.low <= option.fresh.speedup <= option.fresh.high
    if "parts" in found.options[1].settings:
        for factor in (CAUTION / DOUBT, CAUTION * DOUBT):
            gain = speedup(factor * np.array(nu), shares_of(found.options[1]))
            assert found.options[1].fresh.low <= gain * (1 + 1e-9)
            assert gain <= found.options[1].fresh.high * (1 + 1e-9)


def test_a_cheap_head_does_not_make_up_for_layers_that_lag() -> None:
    """Nearly all of a step is the backward below the head, and noise is far above signal."""
    parts = StepCosts(0.0, [0.05] * 3, [1.0, 1.0, 0.0], [0.0] * 3)
    made = replace(costs_of(layer_names(3)), seconds=parts)
    found = Gains(made, noise_of([5.0] * 3), 40)
    assert found.best is found.options[0]


def test_without_noise_hidden_layers_do_with_one_part() -> None:
    found = gains([1e-4] * 4)
    assert found.best.settings["parts"] == 8
    assert found.best.sampler == samplers.Shares([1 / 8, 1 / 8, 1 / 8, 1.0])
    assert found.best.fresh.speedup == pytest.approx(12 / (4 + 2 * (3 / 8 + 1)), rel=0.02)
    assert found.best.fresh.low > 1


@pytest.mark.parametrize(("nu", "update", "kind"), [(5.0, 0.0, None), (5.0, 12.0, "turns")])
def test_with_noise_only_turns_may_pay(nu: float, update: float, kind: str | None) -> None:
    found = gains([nu] * 4, update)
    assert found.best.settings.get("parts", 1) == 1
    assert ("turns" in found.best.settings) == (kind == "turns")
    if kind is None:
        assert found.best is found.options[0]


def test_the_gain_of_turns_is_what_they_save_times_their_quality() -> None:
    found = gains([5.0] * 4, update=3.0)
    for option in found.options[1:]:
        r = option.settings["turns"]
        assert option.fresh.speedup == pytest.approx(
            math.prod(QUALITY[r]) ** 0.5 / (1 - 0.5 * (1 - 1 / r))
        )


def test_layers_without_matrices_save_nothing_by_turns() -> None:
    some = Gains(replace(costs(2, 3.0), takes_turns=(True, False)), None)
    assert some.options[-1].fresh.speedup == pytest.approx(
        math.prod(QUALITY[4]) ** 0.5 / (1 - 0.25 * 0.75)
    )
    none = Gains(replace(costs(2, 3.0), takes_turns=(False, False)), None)
    assert [option.name for option in none.options] == ["full updates"]


def test_a_gain_must_exceed_the_error_of_the_costs() -> None:
    found = gains([1e-3] * 3)
    rough = replace(found, costs=replace(found.costs, fit_error=1.0))
    assert found.best.fresh.speedup > WORTHWHILE
    assert rough.best is rough.options[0]


@pytest.mark.parametrize("rounds", [0, 5])
def test_a_run_that_is_too_short_predicts_no_parts(rounds: int) -> None:
    made = replace(costs(3, update=12.0), rounds=rounds)
    found = Gains(made, noise_of([1e-3] * 3, steps=5))
    parts = found.options[1]
    assert (parts.fresh.low, parts.fresh.high) == (0.0, math.inf)
    assert "turns" in found.best.settings if rounds else found.best is found.options[0]
    assert found.smaller_batch is None


def test_cutting_is_paid_for() -> None:
    quiet = noise_of([1e-3] * 3)
    passes = 3.0 * 3
    slow = replace(quiet, seconds=passes + 3.0)
    free, dear = Gains(costs(3), quiet), Gains(costs(3), slow)
    assert dear.options[1].settings["parts"] < free.options[1].settings["parts"]
    m, shares = dear.options[1].settings["parts"], np.array(dear.options[1].sampler.shares)  # type: ignore[attr-defined]
    assert dear.options[1].fresh.speedup == pytest.approx(
        9 / (3 + 2 * shares.sum() + (m - 1)), rel=0.05
    )


def test_a_part_has_two_examples_at_least() -> None:
    assert gains([1e-3] * 3, examples=9).best.settings["parts"] == 4
    assert "parts" not in gains([1e-3] * 3, examples=3).best.settings


def test_longer_runs_have_more_noise_and_gain_less() -> None:
    noise = noise_of([0.05] * 3, growth=1.0)
    found = [Gains(costs(3), noise, steps).best.fresh.speedup for steps in (20, 40, 80, 400)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == 1.0
    assert Gains(costs(3), noise).horizon == 160


def test_the_step_at_which_shares_should_be_one_is_where_the_best_ones_are() -> None:
    found = Gains(costs(3), noise_of([0.02] * 3, growth=1.0), 40)
    step, m = found.full_from, found.options[1].settings["parts"]
    assert step is not None
    assert 40 < step < 4000
    flat = [np.array([k / m, k / m, 1.0]) for k in range(1, m)]
    for at, is_full in ((step / 2, False), (2 * step, True)):
        nu = np.full(3, CAUTION * 0.02 * at / 40)
        assert (max(speedup(nu, shares) for shares in flat) <= 1.0) == is_full
    assert Gains(costs(3), noise_of([1e-3] * 3), 40).full_from is None


def test_critical_batches_are_where_noise_equals_signal() -> None:
    found = gains([0.25, 1.0], examples=512)
    assert found.critical_batch_sizes is not None
    np.testing.assert_allclose(found.critical_batch_sizes, [128.0, 512.0])
    assert found.critical_batch_size is not None
    assert 128 < found.critical_batch_size < 512
    assert Gains(costs(2), None).critical_batch_size is None


@pytest.mark.parametrize("nu", [1e-3, 1e-2, 0.1, 5.0])
def test_a_smaller_batch_is_named_where_it_gains_as_much(nu: float) -> None:
    found = gains([nu] * 3, update=0.3)
    smaller, critical = found.smaller_batch, 1024 * nu
    if nu == 5.0:
        assert smaller is None
        return
    assert smaller is not None
    assert critical <= smaller.examples < 1024
    share, noise = smaller.examples / 1024, CAUTION * nu
    progress = (1 + noise) / (1 + noise / share)
    assert smaller.prediction.speedup == pytest.approx(progress * 3.3 / (0.3 + 3 * share), rel=1e-6)
    assert smaller.prediction.speedup >= found.best.fresh.speedup


def test_one_layer_has_no_parts() -> None:
    assert [o.name for o in gains([1e-3], update=0.1).options][:2] == ["full updates", "turns of 2"]


def test_resampled_noise_widens_intervals() -> None:
    def width(noise: NoiseEstimate) -> float:
        fresh = Gains(costs(3), noise, 40).options[1].fresh
        return fresh.high / fresh.low

    assert width(noise_of([0.05] * 3, spread=1.5)) > 1.02 * width(noise_of([0.05] * 3))
