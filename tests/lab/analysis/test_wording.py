"""Numbers and speed-ups as text."""

from __future__ import annotations

import pytest

from dropmuon.lab.analysis import wording
from tests.lab.synthetic_runs import speedup


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            speedup(1.234, 1.1, 1.35),
            "a reached 90 % train accuracy 1.23x as fast as muon (1.10 to 1.35, 3 of 3 seeds).",
        ),
        (
            speedup(0.8, 0.7, 0.9),
            "a was slower than muon: 0.80x its speed to 90 % train accuracy "
            "(0.70 to 0.90, 3 of 3 seeds).",
        ),
        (
            speedup(1.1, 0.9, 1.3, reached=2),
            "a and muon reached 90 % train accuracy in about the same time: 1.10x "
            "(0.90 to 1.30, 2 of 3 seeds; the rest missed it).",
        ),
        (
            speedup(1.5, 1.4, 1.6, baseline_reached=2, compared=2),
            "a reached 90 % train accuracy 1.50x as fast as muon "
            "(1.40 to 1.60, 3 of 3 seeds, compared on 2).",
        ),
        (
            speedup(1.5, unit="operations"),
            "a reached 90 % train accuracy 1.50x as efficiently as muon (3 of 3 seeds).",
        ),
        (
            speedup(0.8, unit="operations"),
            "a was more costly than muon: 0.80x its efficiency to 90 % train accuracy "
            "(3 of 3 seeds).",
        ),
        (
            speedup(None, reached=0),
            "a missed 90 % train accuracy on all of 3 seeds; muon reached it on 3 of 3.",
        ),
        (
            speedup(None, reached=0, baseline_reached=0),
            "a missed 90 % train accuracy on all of 3 seeds; muon missed it, too.",
        ),
        (
            speedup(None, baseline_reached=0),
            "a reached 90 % train accuracy (3 of 3 seeds), but muon did not on those seeds.",
        ),
    ],
)
def test_wins_draws_losses_and_misses_are_said_plainly(found, expected):
    assert wording.sentence(found, "muon") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.234e12, "1.23 TFLOP"), (5e9, "5 GFLOP"), (12.0, "12 FLOP"), (None, "–"), (2e15, "2 PFLOP")],
)
def test_operations_are_short(value, expected):
    assert wording.operations(value) == expected
