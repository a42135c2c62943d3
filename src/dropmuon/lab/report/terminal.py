"""Results for a terminal: narrow tables whose cells are never truncated, whatever the width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from dropmuon.lab.analysis import formatting
from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.results import Results
from dropmuon.lab.analysis.series import Split, Unit

__all__ = ["costs_table", "targets_table"]


def costs_table(results: Results) -> Table:
    """Return a table of the final accuracy and cost of every method."""
    title = f"Final accuracy and cost; percentages are relative to {results.baseline}"
    shown = _table(title, ["method", "train", "test", "time", "operations", "step"], left=1)
    if results.unfinished:
        note = f"{len(results.unfinished)} of {results.planned} trials are unfinished"
        shown.caption = Text(note)
    for method in results.methods:
        base = method == results.baseline
        name = method + (" (baseline)" if base else "")
        _add(shown, [name, *_costs(results.final(method), base)], dim=base)
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
            goal = formatting.goal(target) if not place else ""
            found = results.speedup(method, target, split, unit)
            _add(shown, [goal, method, *_reached(found, base)], dim=base)
        shown.add_section()
    return shown


def _costs(final: Final | None, baseline: bool) -> list[str]:
    if final is None:
        return ["–"] * 5
    accuracies = [formatting.percent(final.train.mean), formatting.percent(final.test.mean)]
    if baseline:
        costs = [formatting.duration(final.seconds), formatting.operations(final.operations)]
        return [*accuracies, *costs, formatting.duration(final.seconds_per_step)]
    shares = (final.seconds_share, final.operations_share, final.step_seconds_share)
    return [*accuracies, *(formatting.share(each) for each in shares)]


def _reached(found: Speedup | None, baseline: bool) -> list[str]:
    if found is None or not found.seeds:
        return ["–"] * 4
    interval = "–"
    if not baseline and found.low is not None and found.high is not None:
        interval = f"{found.low:.2f} to {found.high:.2f}"
    speedup = "baseline" if baseline else formatting.times(found.ratio)
    time = formatting.amount(found.time, found.unit)
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
