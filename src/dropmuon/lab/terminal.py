"""A comparison on a terminal: its progress while it runs, then its results.

Tables of results are narrow and their cells never truncated, whatever the width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dropmuon.lab.analysis import Results, wording
from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.series import Split, Unit
from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation
from dropmuon.lab.watch import Watcher
from dropmuon.output import duration

__all__ = ["Display", "costs_table", "targets_table"]


class Display(Watcher):
    """A table that follows the comparison: how far, how good, how fast, and the time left.

    At equal cost an epoch is what an epoch of the baseline costs.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live: Live | None = None
        self._rows: dict[str, _Row] = {}
        self._total, self._epochs, self._seeds = 1, 1.0, 1
        self._began = 0.0
        self._before: float | None = None

    def prepare(self, what: str) -> None:
        self._console.print(Text(what, style="dim"))

    def begin(self, config: Config, total_steps: int) -> None:
        self._rows = {name: _Row(seed=config.seeds[0]) for name in config.methods}
        self._total, self._epochs, self._seeds = total_steps, config.epochs, len(config.seeds)
        self._began, self._before = self._clock(), None
        self._live = Live(
            get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True
        )
        self._live.start()

    def progressed(self, method: str, seed: int, progress: float) -> None:
        if self._before is None:
            self._before = self._done()
        self._rows[method].progress = progress

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        row = self._rows[method]
        row.seed, row.step, row.seconds = seed, step, seconds

    def evaluated(self, evaluation: Evaluation) -> None:
        row = self._rows[evaluation.method]
        row.seed, row.step, row.seconds = evaluation.seed, evaluation.step, evaluation.seconds
        row.train, row.test = evaluation.train_accuracy, evaluation.test_accuracy
        row.loss = evaluation.test_loss
        progress = evaluation.progress
        row.progress = evaluation.step / self._total if progress is None else progress
        row.finished += row.progress >= 1

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def render(self) -> RenderableType:
        """Return the table, and a bar over all methods and seeds."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method")
        for name in ("seed", "epoch", "train", "test", "loss", "steps/s"):
            table.add_column(name, justify="right")
        for name, row in self._rows.items():
            table.add_row(name, *self._cells(row))
        done, total = self._done(), self._seeds * max(1, len(self._rows))
        bar = ProgressBar(total=total, completed=done, width=40)
        foot = Table.grid(padding=(0, 2))
        foot.add_row(bar, Text(self._left(done, total), style="dim"))
        return Group(table, foot)

    def _cells(self, row: _Row) -> list[str]:
        rate = row.step / row.seconds if row.seconds > 0 else 0.0
        return [
            str(row.seed),
            f"{row.progress * self._epochs:.1f}/{self._epochs:g}",
            "" if row.train is None else f"{row.train:.1%}",
            "" if row.test is None else f"{row.test:.1%}",
            "" if row.loss is None else f"{row.loss:.3f}",
            f"{rate:.1f}" if rate else "",
        ]

    def _done(self) -> float:
        """Return how many trials are done, those under way in part."""
        rows = self._rows.values()
        return sum(row.finished + (row.progress if row.progress < 1 else 0.0) for row in rows)

    def _left(self, done: float, total: int) -> str:
        if self._before is None or done <= self._before:
            return "starting"
        elapsed, new = self._clock() - self._began, done - self._before
        return f"{duration(elapsed)} gone, about {duration(elapsed * (total - done) / new)} left"


def costs_table(results: Results) -> Table:
    """Return a table of the final quality and cost of every method; text has bits per byte only."""
    what = "bits per byte" if results.in_bits else "test loss, accuracy"
    title = f"Final {what} and cost; percentages are relative to {results.baseline}"
    quality = ["bits"] if results.in_bits else ["loss", "train", "test"]
    shown = _table(title, ["method", *quality, "time", "operations", "step"], left=1)
    if results.unfinished:
        note = f"{len(results.unfinished)} of {results.planned} trials are unfinished"
        shown.caption = Text(note)
    for method in results.methods:
        base = method == results.baseline
        name = method + (" (baseline)" if base else "")
        final = results.final(method)
        cells = _costs(final, base) if final else ["–"] * (len(quality) + 3)
        _add(shown, [name, *cells], dim=base)
    return shown


def targets_table(results: Results, split: Split = "train", unit: Unit = "seconds") -> Table:
    """Return a table of the time in which every method reached every target."""
    clock = "time" if unit == "seconds" else "operations"
    title = f"{clock.capitalize()} to {split} accuracy; speed-up is relative to {results.baseline}"
    header = ["target", "method", clock, "speed-up", "interval", "reached"]
    shown = _table(title, header, left=2)
    for target in results.targets:
        for place, method in enumerate(results.methods):
            base = method == results.baseline
            goal = wording.goal(target) if not place else ""
            found = results.speedup(method, target, split, unit)
            _add(shown, [goal, method, *_reached(found, base)], dim=base)
        shown.add_section()
    return shown


@dataclass
class _Row:
    """The progress of one method."""

    seed: int = 0
    step: int = 0
    seconds: float = 0.0
    train: float | None = None
    test: float | None = None
    loss: float | None = None
    progress: float = 0.0
    finished: int = 0


def _costs(final: Final, baseline: bool) -> list[str]:
    quality = [wording.loss(final)]
    if not final.in_bits:
        quality += [wording.percent(final.train.mean), wording.percent(final.test.mean)]
    if baseline:
        costs = [wording.duration(final.seconds), wording.operations(final.operations)]
        return [*quality, *costs, wording.duration(final.seconds_per_step)]
    shares = (final.seconds_share, final.operations_share, final.step_seconds_share)
    return [*quality, *(wording.share(each) for each in shares)]


def _reached(found: Speedup | None, baseline: bool) -> list[str]:
    if found is None or not found.seeds:
        return ["–"] * 4
    interval = "–"
    if not baseline and found.low is not None and found.high is not None:
        interval = f"{found.low:.2f} to {found.high:.2f}"
    speedup = "baseline" if baseline else wording.times(found.ratio)
    time = wording.amount(found.time, found.unit)
    return [time, speedup, interval, f"{found.reached} of {found.seeds}"]


def _table(title: str, header: Sequence[str], left: int) -> Table:
    """Return an empty table; its widest column, the names of methods, is folded first."""
    shown = Table(
        title=Text(title),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for place, name in enumerate(header):
        justify: JustifyMethod = "left" if place < left else "right"
        shown.add_column(Text(name), justify=justify, overflow="fold")
    return shown


def _add(shown: Table, cells: Iterable[str], *, dim: bool) -> None:
    shown.add_row(*(Text(cell) for cell in cells), style="dim" if dim else None)
