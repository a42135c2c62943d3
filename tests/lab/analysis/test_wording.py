"""Numbers and speed-ups as text."""

from __future__ import annotations

import pytest

from dropmuon.lab.analysis import wording
from dropmuon.lab.analysis.metrics import Final, Spread
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


def final(method: str, loss: float | None, test: float, *, in_bits: bool = False) -> Final:
    one = Spread(test, test, test)
    losses = None if loss is None else Spread(loss, loss, loss)
    return Final(method, 1, 10, one, one, losses, in_bits, 1.0, 1.0, None, None)


@pytest.mark.parametrize(
    ("own", "base", "expected"),
    [
        (
            final("a", 0.312, 0.9),
            final("muon", 0.339, 0.881),
            "Its final test loss is 0.312 against 0.339, its test accuracy 1.9 points higher: "
            "90.0 % against 88.1 %.",
        ),
        (
            final("a", 0.35, 0.9),
            final("muon", 0.339, 0.9),
            "Its final test loss is 0.350 against 0.339, its test accuracy the same, 90.0 %.",
        ),
        (
            final("a", None, 0.8),
            final("muon", 0.339, 0.9),
            "Its final test accuracy is 10.0 points lower: 80.0 % against 90.0 %.",
        ),
        (
            final("a", 2.21, 0.5, in_bits=True),
            final("muon", 2.493, 0.4, in_bits=True),
            "It ends at 2.210 bits per byte, muon at 2.493 bits per byte.",
        ),
    ],
)
def test_final_losses_stand_beside_accuracies(own: Final, base: Final, expected: str) -> None:
    assert wording.comparison(own, base) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.234e12, "1.23 TFLOP"), (5e9, "5 GFLOP"), (12.0, "12 FLOP"), (None, "–"), (2e15, "2 PFLOP")],
)
def test_operations_are_short(value, expected):
    assert wording.operations(value) == expected
