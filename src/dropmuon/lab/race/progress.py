"""How far a race is: what is done, what is left, and about how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from dropmuon.lab.analysis.race_wording import budget
from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation
from dropmuon.lab.terminal import Display
from dropmuon.lab.watch import Watcher
from dropmuon.text import duration

__all__ = ["Progress", "RaceDisplay"]


class Progress(Watcher):
    """Follows all comparisons of a race, whose cost grows with their budget.

    `tell` gets a line when a rung begins and when it ends.
    """

    def __init__(
        self,
        ladder: Sequence[float],
        tell: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ladder, self._tell, self._clock = tuple(ladder), tell, clock
        self._finished: set[float] = set()
        self._rung: float | None = None
        self._trials: dict[tuple[str, int], float] = {}
        self._count, self._total_steps = 1, 1
        self._began, self._before = clock(), 0.0
        self._is_moving = self._is_told = False

    def start(self, finished: Iterable[float]) -> None:
        """Start the clock of a race in which these rungs are finished."""
        self._finished = set(finished)
        self._began, self._before, self._is_moving = self._clock(), self._done(), False

    def enter(self, rung: float) -> None:
        """Begin a rung, which may still be rejected."""
        self._rung, self._trials = rung, {}

    def leave(self, rung: float) -> None:
        """End a rung."""
        self._finished.add(rung)
        self._rung = None
        self._tell(f"{budget(rung)}: done; {self.text()}")

    def begin(self, config: Config, total_steps: int) -> None:
        if self._rung is not None:
            place = self._ladder.index(self._rung) + 1
            self._tell(f"{budget(self._rung)}: {place} of {len(self._ladder)}")
        self._count, self._total_steps = len(config.methods) * len(config.seeds), total_steps

    def progressed(self, method: str, seed: int, progress: float) -> None:
        """Note the share of its training that a trial has done."""
        self._is_told = True
        self._note(method, seed, progress)

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        if not self._is_told:
            self._note(method, seed, step / self._total_steps)

    def evaluated(self, evaluation: Evaluation) -> None:
        known = evaluation.progress
        share = evaluation.step / self._total_steps if known is None else known
        self._trials[evaluation.method, evaluation.seed] = min(share, 1.0)

    def text(self) -> str:
        """Return what is done and what is left."""
        share = self._done() / sum(self._ladder)
        done = f"{len(self._finished)} of {len(self._ladder)} budgets done"
        return f"{done}, {100 * share:.0f} % of the race; {self.left()}"

    def left(self) -> str:
        """Return the time that is gone and about the time that is left."""
        new, elapsed = self._done() - self._before, self._clock() - self._began
        rest = sum(self._ladder) - self._done()
        if not self._is_moving or new <= 0:
            return "time left unknown yet"
        return f"{duration(elapsed)} gone, about {duration(elapsed * rest / new)} left"

    def _note(self, method: str, seed: int, share: float) -> None:
        if not self._is_moving:
            self._began, self._before, self._is_moving = self._clock(), self._done(), True
        self._trials[method, seed] = min(share, 1.0)

    def _done(self) -> float:
        """Return the sum of budgets spent, that of the current rung in part."""
        current = (self._rung or 0.0) * sum(self._trials.values()) / self._count
        return sum(self._finished) + current


class RaceDisplay(Display):
    """The display of a comparison, with a line about the whole race below it."""

    def __init__(self, console: Console, progress: Progress) -> None:
        super().__init__(console)
        self._progress = progress

    def render(self) -> RenderableType:
        """Return the table of the comparison and the line."""
        return Group(super().render(), Text(self._progress.text(), style="dim"))
