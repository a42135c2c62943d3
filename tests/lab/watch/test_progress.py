"""What a person at the terminal sees while a comparison runs."""

from __future__ import annotations

import io

from rich.console import Console

from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation
from dropmuon.lab.watch.progress import Display


def evaluation(method: str, seed: int, step: int) -> Evaluation:
    return Evaluation(method, seed, step, step / 10, step * 0.1, step * 1e6, 0.5, 1.0, 0.25, 1.0)


def shown(display: Display) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(display.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def begun(now: list[float]) -> Display:
    terminal = Console(file=io.StringIO(), force_terminal=True)
    display = Display(terminal, clock=lambda: now[0])
    display.begin(Config(methods=("full", "sgd"), seeds=(0, 1), epochs=2), total_steps=20)
    return display


def test_rows_tell_seed_epoch_accuracies_and_speed() -> None:
    display = begun([0.0])
    assert "starting" in shown(display)
    display.advance("full", 0, 5, 0.5)
    display.evaluated(evaluation("sgd", 0, 10))
    display.end()
    full, sgd = shown(display).splitlines()[1:3]
    assert full.split() == ["full", "0", "0.5/2", "10.0"]
    assert sgd.split() == ["sgd", "0", "1.0/2", "50.0%", "25.0%", "10.0"]


def test_time_left_follows_from_steps_of_all_methods_and_seeds() -> None:
    now = [0.0]
    display = begun(now)
    for method in ("full", "sgd"):
        display.advance(method, 0, 10, 1.0)
    now[0] = 30.0
    display.end()
    assert "30.0 s gone, about 90.0 s left" in shown(display)


def test_what_an_earlier_run_did_is_not_counted_as_speed() -> None:
    now = [0.0]
    display = begun(now)
    for method in ("full", "sgd"):
        display.evaluated(evaluation(method, 0, 20))
    assert "starting" in shown(display)
    display.advance("full", 1, 10, 1.0)
    now[0] = 10.0
    display.end()
    assert "10.0 s gone, about 30.0 s left" in shown(display)
