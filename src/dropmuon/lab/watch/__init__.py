"""Observers of a comparison: a progress display, loggers, or none."""

from __future__ import annotations

from collections.abc import Sequence

from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation

__all__ = ["Watcher", "Watchers"]


class Watcher:
    """Base of all watchers, which does nothing."""

    def prepare(self, what: str) -> None:
        """Called before training with a few words about what takes time."""

    def begin(self, config: Config, total_steps: int) -> None:
        """Called when training starts; every trial takes `total_steps` steps."""

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        """Called when a trial has reached a step after this many seconds of training."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Called when a trial was evaluated."""

    def end(self) -> None:
        """Called when training has ended or was interrupted."""


class Watchers(Watcher):
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def prepare(self, what: str) -> None:
        for each in self._watchers:
            each.prepare(what)

    def begin(self, config: Config, total_steps: int) -> None:
        for each in self._watchers:
            each.begin(config, total_steps)

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        for each in self._watchers:
            each.advance(method, seed, step, seconds)

    def evaluated(self, evaluation: Evaluation) -> None:
        for each in self._watchers:
            each.evaluated(evaluation)

    def end(self) -> None:
        for each in self._watchers:
            each.end()
