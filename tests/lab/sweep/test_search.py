"""What cells are ranked by."""

from __future__ import annotations

import math

import pytest

from dropmuon.lab.run import Evaluation
from dropmuon.lab.sweep.search import Objective


def evaluation(method, seed, step, accuracy) -> Evaluation:
    return Evaluation(method, seed, step, step, 2.0 * step, 1e9 * step, accuracy, 0.1, accuracy, 0)


def test_an_objective_is_the_mean_over_seeds_of_the_best_method():
    seen = [
        evaluation(method, seed, step, value)
        for method, seed, values in [("a", 0, (0.5, 0.9)), ("a", 1, (0.9, 0.8)), ("b", 0, (0, 0.6))]
        for step, value in enumerate(values, 1)
    ]
    assert Objective.of("test_accuracy").value(seen) == pytest.approx(0.85)
    assert Objective.of({"method": "b"}).value(seen) == pytest.approx(0.6)
    reached = Objective.of({"metric": "seconds_to_target", "target": 85})
    assert reached.value(seen) == pytest.approx(3.0)
    missed = Objective.of({"metric": "operations_to_target", "target": 85, "method": "b"})
    assert missed.value(seen) == math.inf
    assert missed.shown(math.inf) == "missed"
