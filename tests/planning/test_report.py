"""The text of a plan says what was measured, and what it cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dropmuon import plan
from dropmuon.planning import NoiseEstimate, Plan
from dropmuon.theory import StepCosts
from tests.planning.synthetic_plans import (
    costs_of,
    layer_names,
    noise_of,
    plan_of,
    random_plan,
    small_problem,
)


def test_the_choice_among_several_is_told() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    assert f"The best of {len(found.options)} options" in str(found)


def test_layers_on_adamw_are_named() -> None:
    found = plan(*small_problem(), budget=1.0, points=1, policy="muon", regime="smooth")
    assert found.smoothness.adamw
    assert "parameters on AdamW are in the max-entry norm" in str(found)
    assert found.smoothness.adamw[-1] in str(found)
    assert "AdamW" not in str(plan_of(full=[1.0, 3.0], alone=[0.5, 1.0]))


def test_conditions_say_whether_they_hold() -> None:
    flat = plan_of(full=[4.0, 2.0], alone=[4.0, 2.0])
    assert flat.bounds.full_update_is_optimal
    assert flat.bounds.full_update_is_optimal_generalized is None
    assert "dropmuon.theory.generalized): no L1 was found" in str(flat)
    equal = plan_of(full=[4.0, 4.0 * (1 + 1e-15)], alone=[1.0, 1.0])
    assert equal.bounds.full_update_is_optimal
    curved = random_plan(["a", "b"], 0)
    assert curved.bounds.full_update_is_optimal_generalized in (True, False)


def test_operations_stand_beside_times() -> None:
    found = plan_of(full=[1.0, 3.0], alone=[0.5, 1.0])
    counted = StepCosts(0.0, [999.0, 0.0], [1.5e3, 2.25e6], [4e9, 5e15])
    text = str(replace(found, costs=replace(found.costs, operations=counted)))
    for cell in ("2 ms, 999 ", "2 ms, 0 ", "4 ms, 1.5k", "4 ms, 2.25M", "1 ms, 4G", "1 ms, 5e+03T"):
        assert cell in text
    assert "2 of 2 cutoffs and 5 rounds" in text
    assert "smoothness at 4 points:" in text
    assert "smoothness at 1 point:" in str(plan_of(full=[1.0], alone=[1.0], points=1))


def measured(noise: NoiseEstimate | None, update: float = 0.0, **arguments: Any) -> Plan:
    """Return a plan by measurements for three layers whose updates cost this much."""
    parts = StepCosts(0.0, [1.0] * 3, [2.0] * 3, [update] * 3)
    costs = replace(costs_of(layer_names(3)), seconds=parts)
    return Plan(replace(costs, **arguments), noise)


def test_parts_are_told_with_their_settings_and_what_else_would_do() -> None:
    found = measured(noise_of([8e-3] * 3, growth=1.0))
    text = str(found)
    assert text.startswith(f"Use parts: cut each batch into {found.parts}, with the shares below.")
    assert f"Expected: {found.best.fresh} as fast" in text
    assert "DropMuon(model, lr=lr, **plan.settings)" in text
    assert "in optimizer.split(x, y)" in text
    assert "may not pay" not in text
    assert f"shares should be 1 from about step {found.full_from} on" in text
    assert "a run of 160 steps, four times what was measured" in text
    assert found.smaller_batch is not None
    assert f"about {found.smaller_batch.examples} examples are expected" in text
    assert "Measured: costs and noise. Assumed:" in text


@pytest.mark.parametrize(("seconds", "told"), [(4.5, True), (8.9, False)])
def test_pieces_that_are_faster_by_themselves_are_told(seconds: float, told: bool) -> None:
    """Both passes of the batch take 9 s in one piece."""
    found = measured(replace(noise_of([8e-3] * 3), seconds=seconds))
    assert found.gains.piecewise == pytest.approx(seconds / 9)
    assert ("a batch in 4 pieces takes 0.50 of the time" in str(found)) is told


def test_turns_are_told() -> None:
    text = str(measured(noise_of([9.0] * 3), update=12.0))
    assert text.startswith("Take turns: matrices move at every fourth step, 4 times as far.")
    assert "optimizer.split" not in text
    assert "shares should be 1" not in text
    assert "If the batch size is yours" not in text


def test_where_nothing_pays_it_is_said() -> None:
    text = str(measured(noise_of([9.0] * 3)))
    assert text.startswith("Neither parts nor turns are expected to pay. Use full updates.")


def test_a_gain_that_may_not_come_is_called_so() -> None:
    found = measured(noise_of([0.1] * 3))
    assert found.best.fresh.low < 1 < found.best.fresh.speedup
    assert "It may not pay." in str(found)


@pytest.mark.parametrize(
    ("noise", "rounds", "words"),
    [
        (noise_of([1e-3] * 3), 0, "No verdict yet: there was time to measure 3 of 3 cutoffs only"),
        (
            noise_of([1e-3] * 3, steps=5),
            5,
            "No verdict yet: the run had 5 of the 6 steps that",
        ),
        (None, 5, "Noise is unknown, since batches cannot be cut"),
    ],
)
def test_what_is_missing_is_told(noise: NoiseEstimate | None, rounds: int, words: str) -> None:
    found = measured(noise, rounds=rounds)
    assert words in str(found)
    assert not found.gain_expected


def test_bounds_are_told_from_measurements() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    assert str(found).startswith("By the bounds, which are no measurement of training: use")
    assert "plan() predicts from measured noise" in str(found)
    assert "bounds" not in str(measured(noise_of([0.1] * 3)))
