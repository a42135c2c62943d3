"""Series of shares and noise, layer by layer; and when a trial has ended."""

from __future__ import annotations

from dataclasses import replace

from dropmuon.lab.analysis.series import has_ended, per_layer
from dropmuon.lab.run import Evaluation


def evaluation(seed: int, step: int, **lists: tuple[float | None, ...]) -> Evaluation:
    values = (0.0, 0.0, 0.5, 1.0, 0.5, 1.0)
    return Evaluation("a", seed, step, step / 10, *values, **lists)  # type: ignore[arg-type]


def test_lines_are_means_over_seeds_and_skip_what_is_unknown() -> None:
    of_seed = {
        0: [
            evaluation(0, 0, noise=(None, None)),
            evaluation(0, 10, noise=(0.2, None)),
            evaluation(0, 20, noise=(0.4, 1.0)),
        ],
        1: [evaluation(1, 0), evaluation(1, 10, noise=(0.4, 0.5))],
    }
    first, second = per_layer(of_seed, "noise")
    assert [(x, round(y, 9)) for x, y in first] == [(1.0, 0.3), (2.0, 0.4)]
    assert second == [(1.0, 0.5), (2.0, 1.0)]
    assert per_layer(of_seed, "shares") == []


def test_a_trial_has_ended_by_its_progress_or_else_by_its_epochs() -> None:
    short = evaluation(0, 10)
    assert has_ended([short], epochs=1.0)
    assert not has_ended([short], epochs=2.0)
    assert has_ended([replace(short, progress=1.0)], epochs=2.0)
    assert not has_ended([replace(short, progress=0.9)], epochs=1.0)
