"""The text of a plan says what was measured, and what it cannot tell."""

from __future__ import annotations

from dataclasses import replace

from dropmuon import plan
from dropmuon.theory import StepCosts
from tests.planning.synthetic_plans import plan_of, random_plan, small_problem


def test_the_choice_among_several_is_told() -> None:
    found = plan_of(full=[1.0, 3.0, 9.0], alone=[0.5, 1.0, 2.0])
    assert f"The best of {len(found.options)} options" in str(found)


def test_layers_on_adamw_are_named() -> None:
    found = plan(*small_problem(), budget=1.0, points=1, policy="muon")
    assert found.smoothness.adamw
    assert "parameters on AdamW are in the max-entry norm" in str(found)
    assert found.smoothness.adamw[-1] in str(found)
    assert "AdamW" not in str(plan_of(full=[1.0, 3.0], alone=[0.5, 1.0]))


def test_conditions_say_whether_they_hold() -> None:
    flat = plan_of(full=[4.0, 2.0], alone=[4.0, 2.0])
    assert flat.full_update_is_optimal
    assert flat.full_update_is_optimal_generalized is None
    assert "dropmuon.theory.generalized): no L1 was found" in str(flat)
    equal = plan_of(full=[4.0, 4.0 * (1 + 1e-15)], alone=[1.0, 1.0])
    assert equal.full_update_is_optimal
    curved = random_plan(["a", "b"], 0)
    assert curved.full_update_is_optimal_generalized in (True, False)


def test_operations_stand_beside_times() -> None:
    found = plan_of(full=[1.0, 3.0], alone=[0.5, 1.0])
    counted = StepCosts(0.0, [999.0, 0.0], [1.5e3, 2.25e6], [4e9, 5e15])
    text = str(replace(found, costs=replace(found.costs, operations=counted)))
    for cell in ("2 ms, 999 ", "2 ms, 0 ", "4 ms, 1.5k", "4 ms, 2.25M", "1 ms, 4G", "1 ms, 5e+03T"):
        assert cell in text
    assert "2 of 2 cutoffs and 5 rounds" in text
    assert "smoothness at 4 points:" in text
    assert "smoothness at 1 point:" in str(plan_of(full=[1.0], alone=[1.0], points=1))
