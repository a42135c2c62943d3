"""Runs to compare with others, and to interrupt."""

from __future__ import annotations

from dataclasses import replace

from dropmuon.lab.run import Evaluation, RunDirectory
from dropmuon.lab.watch import Watcher


def timeless(run: RunDirectory) -> list[Evaluation]:
    """Everything but time, in an order of its own."""
    found = [replace(each, seconds=0.0, load=None) for each in run.evaluations()]
    return sorted(found, key=lambda each: (each.seed, each.method, each.step))


class StopAfter(Watcher):
    """Presses Ctrl-C after so many evaluations, while training continues."""

    def __init__(self, evaluations: int) -> None:
        self._left = evaluations

    def evaluated(self, evaluation: Evaluation) -> None:
        self._left -= 1

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        if self._left <= 0:
            raise KeyboardInterrupt
