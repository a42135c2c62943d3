"""The end of a race: its files, and on a terminal one sentence and one table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dropmuon.lab.analysis import race_wording, wording
from dropmuon.lab.analysis.race import (
    MEASURES,
    Measure,
    RaceResults,
    summarize_race,
    write_race,
)
from dropmuon.lab.analysis.series import Unit
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.report.race_page import write_picture, write_race_report

__all__ = ["conclude_race", "race_table"]

_COLUMNS: tuple[tuple[Measure, Unit], ...] = (
    ("loss", "operations"),
    ("loss", "seconds"),
    ("accuracy", "operations"),
)


def conclude_race(race: RaceDirectory, *, terminal: bool) -> None:
    """Write results, page and picture; print sentence and table to a terminal, else CSV."""
    results, settings = summarize_race(race), race.settings
    verdict = race_wording.verdict_of_race(results, settings)
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
        console.print(race_table(results, settings))
    console.print(Text(str(report), style="dim"), soft_wrap=True)


def race_table(results: RaceResults, settings: Mapping[str, Any]) -> Table:
    """Return qualities at the budget of the headline, and how much the baseline needs for them.

    The row of the baseline has its costs.
    """
    where, base = race_wording.budget(results.rung), results.baseline
    loss, accuracy = (race_wording.measure_name(measure, settings) for measure in MEASURES)
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
        cells = [method, *_qualities(results, settings, method), *_costs(results, method)]
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _qualities(results: RaceResults, settings: Mapping[str, Any], method: str) -> Iterator[str]:
    place = results.place(method)
    for measure in MEASURES:
        spread = place.spread(measure) if place else None
        yield race_wording.quality(spread.mean if spread else None, measure, settings)


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
