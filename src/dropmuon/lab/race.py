"""Races: the same methods at a ladder of budgets, for their speed at equal quality.

`race` runs one comparison after the other, from the smallest budget to the largest; `Progress`
tells how far it is; `conclude_race` writes its files, and prints one sentence and one table.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dropmuon.lab.analysis import race_wording, wording
from dropmuon.lab.analysis.race import (
    MEASURES,
    Measure,
    RaceResults,
    summarize_race,
)
from dropmuon.lab.analysis.series import Unit
from dropmuon.lab.config import Config
from dropmuon.lab.ladder import LADDER, RaceDirectory, checked_ladder
from dropmuon.lab.report.race_page import write_picture, write_race_report
from dropmuon.lab.run import Evaluation, RunDirectory, check_same
from dropmuon.lab.terminal import Display
from dropmuon.lab.train.compare import compare as run_comparison
from dropmuon.lab.watch import Watcher, Watchers
from dropmuon.output import duration, write_json, write_text

__all__ = [
    "Progress",
    "RaceDisplay",
    "conclude_race",
    "race",
    "race_table",
    "rung_config",
    "write_race",
]

_COLUMNS: tuple[tuple[Measure, Unit], ...] = (
    ("loss", "operations"),
    ("loss", "seconds"),
    ("accuracy", "operations"),
)


class Comparison(Protocol):
    """What runs one rung: `compare`, or a function with the same arguments."""

    def __call__(
        self,
        config: Config,
        out: Path,
        *,
        resume: bool,
        watcher: Watcher,
        known: Mapping[str, Mapping[str, Any]],
    ) -> RunDirectory: ...


def race(
    config: Config,
    out: Path,
    *,
    ladder: Iterable[float] = LADDER,
    resume: bool = False,
    progress: Progress | None = None,
    watcher_of: Callable[[Path], Watcher] = lambda path: Watcher(),
    compare: Comparison = run_comparison,
) -> RaceDirectory:
    """Run a race into a directory; an interrupted one can be resumed from there.

    Args:
        config: the settings at a budget of 1.
        out: the directory of the race.
        ladder: the budgets, as multiples of that one.
        resume: continue the race in `out`, with the rung that was interrupted; the ladder may have
            more rungs than it began with.
        progress: is told what is done.
        watcher_of: makes the watcher of a rung from its directory.
        compare: runs one rung.

    Raises KeyboardInterrupt on Ctrl-C, with all finished work on disk. A race that a rung rejects
    before anything was trained leaves nothing behind.
    """
    rungs = checked_ladder(ladder)
    configs = {rung: rung_config(config, rung) for rung in rungs}
    found, made = RaceDirectory(out), [p for p in (out, *out.parents) if not p.exists()]
    if resume:
        check_same(Config.of(found.settings).to_json(), config.to_json())
        found.extend(rungs)
    else:
        found.begin(rungs, config.to_json())
    progress = progress or Progress(rungs)
    progress.start(found.finished)
    try:
        for rung in rungs:
            if rung not in found.finished:
                run = found.rung(rung)
                watcher = Watchers([progress, watcher_of(run.path)])
                is_begun = (run.path / "config.json").exists()
                progress.enter(rung)
                known = _tuned_below(found, rung)
                compare(configs[rung], run.path, resume=is_begun, watcher=watcher, known=known)
                found.finish(rung)
                progress.leave(rung)
    except Exception:
        if not resume:
            _withdraw(found, made)
        raise
    return found


def rung_config(config: Config, rung: float) -> Config:
    """Return the settings at one of the budgets: so many times the epochs."""
    return replace(config, epochs=config.epochs * rung)


def _tuned_below(race: RaceDirectory, rung: float) -> dict[str, Any]:
    """Return the settings, by method, that the next smaller budget was tuned to, if there is one.

    Budgets that are close have much the same best settings, so that a search which begins with them
    finds better ones in as many trials.
    """
    below = [each for each in race.finished if each < rung]
    report = race.rung(max(below)).tuned if below else {}
    return {name: found["settings"] for name, found in report.items()}


def _withdraw(race: RaceDirectory, made: Iterable[Path]) -> None:
    """Remove what a race has written if no rung has begun: its file, and directories made."""
    if any(race.path.glob("rung-*")):
        return
    race.withdraw()
    for path in made:
        with suppress(OSError):
            path.rmdir()


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
        self._tell(f"{race_wording.budget(rung)}: done; {self.text()}")

    def begin(self, config: Config, total_steps: int) -> None:
        if self._rung is not None:
            place = self._ladder.index(self._rung) + 1
            self._tell(f"{race_wording.budget(self._rung)}: {place} of {len(self._ladder)}")
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
        if len(self._finished) == len(self._ladder):
            return f"{duration(elapsed)} gone"
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


def conclude_race(race: RaceDirectory, *, terminal: bool) -> None:
    """Write results, page and picture; print sentence and table to a terminal, else CSV."""
    results = summarize_race(race)
    verdict = race_wording.verdict_of_race(results, race.settings)
    write_race(race, results, verdict)
    write_picture(race, race.path / "picture.svg")
    report = race.path / "report.html"
    write_race_report(race, report)
    if not terminal:
        sys.stdout.write((race.path / "results.csv").read_text())
        return
    console = Console()
    console.print(Text(verdict, style="bold"))
    if results.places:
        console.print()
        console.print(race_table(results))
    console.print(Text(str(report), style="dim"), soft_wrap=True)


def write_race(race: RaceDirectory, results: RaceResults, verdict: str) -> None:
    """Write results.json and results.csv into the directory of the race."""
    content = {"format": 1, "verdict": verdict, **asdict(results)}
    for gap in content["gaps"]:
        gap["distance"] = {key: _known(value) for key, value in gap["distance"].items()}
    write_json(race.path / "results.json", content)
    write_text(race.path / "results.csv", _csv(results))


def race_table(results: RaceResults) -> Table:
    """Return qualities at the budget of the headline, and how much the baseline needs for them.

    The row of the baseline has its costs.
    """
    where, base = race_wording.budget(results.rung), results.baseline
    loss, accuracy = (race_wording.measure_name(measure, results) for measure in MEASURES)
    table = Table(
        title=Text(f"At {where}, and how many times the cost {base} needs for the same quality"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("method", overflow="fold")
    for name in (loss, accuracy, *(f"{unit},\nsame {measure}" for measure, unit in _COLUMNS)):
        table.add_column(Text(name), justify="right", overflow="fold")
    for method in results.methods:
        style = "dim" if method == base else None
        cells = [method, *_qualities(results, method), *_costs(results, method)]
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _qualities(results: RaceResults, method: str) -> Iterator[str]:
    place = results.place(method)
    for measure in MEASURES:
        spread = place.spread(measure) if place else None
        yield race_wording.quality(spread.mean if spread else None, measure)


def _costs(results: RaceResults, method: str) -> Iterator[str]:
    place = results.place(method)
    for measure, unit in _COLUMNS:
        gap = results.gap(method, measure, unit)
        if gap is not None:
            interval = race_wording.interval(gap.distance)
            yield "\n".join(filter(None, (race_wording.ratio(gap.distance), interval)))
        elif place is not None and method == results.baseline:
            yield wording.amount(place.cost(unit), unit)
        else:
            yield "–"


def _known(value: float | None) -> float | None:
    """Return a number that JSON can represent; an end that is open is None."""
    return None if value is None or math.isinf(value) else value


def _csv(results: RaceResults) -> str:
    """Return a row per place and unit; empty where the baseline or a bound has no number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    loss = "test_bits_per_byte" if results.in_bits else "test_loss"
    header = ["method", "rung", "seeds", "steps", "operations", "seconds", loss]
    header += ["test_accuracy", "measure", "unit", "quality", "least", "most", "low", "high"]
    writer.writerow(header)
    for place in results.places:
        mean = "" if place.loss is None else place.loss.mean
        row = [place.method, place.rung, place.seeds, place.steps, place.operations]
        row += [place.seconds, mean, place.accuracy.mean]
        own = [g for g in results.gaps if (g.method, g.rung) == (place.method, place.rung)]
        for gap in own:
            ends = (gap.distance.least, gap.distance.most, gap.distance.low, gap.distance.high)
            shown = ["" if _known(end) is None else end for end in ends]
            writer.writerow([*row, gap.measure, gap.unit, gap.quality, *shown])
        if not own:
            writer.writerow([*row, *[""] * 7])
    return file.getvalue()
