"""Who watches a comparison: a progress display, loggers, or nobody."""

from __future__ import annotations

from collections.abc import Sequence

from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation

__all__ = ["Watcher", "Watchers"]


class Watcher:
    """Is told what happens; does nothing by itself."""

    def prepare(self, what: str) -> None:
        """Something that takes time is done before training: in a few words."""

    def begin(self, config: Config, total_steps: int) -> None:
        """Training is about to start; every trial takes so many steps."""

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        """A trial has reached this step, after so many seconds of training."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """A trial was looked at."""

    def end(self) -> None:
        """All is over, or was interrupted."""


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
