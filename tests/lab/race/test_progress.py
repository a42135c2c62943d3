"""What is told about a race under way: what is done, what is left, and how long."""

from __future__ import annotations

import io

from rich.console import Console

from dropmuon.lab.race import Progress, RaceDisplay
from dropmuon.lab.run import Evaluation
from tests.lab.tiny import tiny

CONFIG = tiny(methods=("full", "sgd"), seeds=(0, 1))


def evaluation(method: str, seed: int, step: int, progress: float | None = None) -> Evaluation:
    numbers = (step / 10, 1.0, 1.0, 0.5, 1.0, 0.5, 1.0)
    return Evaluation(method, seed, step, *numbers, progress=progress)


def started(now: list[float], finished: tuple[float, ...] = ()) -> Progress:
    progress = Progress((0.5, 1.0, 2.5), clock=lambda: now[0])
    progress.start(finished)
    progress.enter(1.0 if finished else 0.5)
    progress.begin(CONFIG, 20)
    return progress


def test_time_left_follows_from_the_budgets_left() -> None:
    now = [100.0]
    progress = started(now)
    assert progress.text() == "0 of 3 budgets done, 0 % of the race; time left unknown yet"
    progress.advance("full", 0, 1, 0.1)
    for method in ("full", "sgd"):
        for seed in (0, 1):
            progress.advance(method, seed, 20, 1.0)
    progress.leave(0.5)
    now[0] = 110.0
    assert progress.text() == (
        "1 of 3 budgets done, 12 % of the race; 10.0 s gone, about 70.0 s left"
    )


def test_a_rung_counts_in_part() -> None:
    now = [0.0]
    progress = started(now)
    progress.advance("full", 0, 10, 0.5)
    progress.advance("sgd", 0, 10, 0.5)
    now[0] = 1.0
    assert "3 % of the race; 1.0 s gone, about 31.0 s left" in progress.text()


def test_what_an_earlier_process_did_is_not_counted_as_speed() -> None:
    now = [0.0]
    progress = started(now, finished=(0.5,))
    for method in ("full", "sgd"):
        progress.evaluated(evaluation(method, 0, 20))
    assert progress.left() == "time left unknown yet"
    progress.advance("full", 1, 0, 0.0)
    progress.advance("full", 1, 20, 0.0)
    now[0] = 5.0
    assert progress.left() == "5.0 s gone, about 55.0 s left"


def test_progress_that_is_told_comes_before_steps() -> None:
    """Methods that take more steps for the same budget are not done sooner."""
    now = [0.0]
    progress = started(now)
    progress.progressed("full", 0, 0.5)
    progress.advance("full", 0, 40, 1.0)
    progress.evaluated(evaluation("sgd", 0, 40, progress=0.5))
    now[0] = 1.0
    assert "3 % of the race" in progress.text()


def test_the_display_of_a_rung_has_a_line_about_the_race() -> None:
    progress = started([0.0])
    file = io.StringIO()
    console = Console(file=file, width=100, color_system=None)
    display = RaceDisplay(console, progress)
    display.begin(CONFIG, 20)
    display.end()
    console.print(display.render())
    assert "0 of 3 budgets done, 0 % of the race" in file.getvalue()
    assert "sgd" in file.getvalue()
