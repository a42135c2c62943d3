"""Reports: the results of a run, and one page about one or several runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dropmuon.lab import analysis
from dropmuon.lab.analysis.series import SPLITS
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.report.figures import write_figures
from dropmuon.lab.report.page import write_report
from dropmuon.lab.report.race_page import write_picture, write_race_report
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.terminal import costs_table, targets_table

__all__ = ["conclude", "report_on", "write_report"]


def conclude(run: RunDirectory, *, terminal: bool) -> None:
    """Write the results, figures and report of a run; print tables to a terminal, else CSV."""
    summary = analysis.summarize(run)
    analysis.write_results(run, summary)
    write_figures(run, summary)
    report = run.path / "report.html"
    write_report([run], report)
    if not terminal:
        sys.stdout.write((run.path / "results.csv").read_text())
        return
    console = Console()
    console.print(costs_table(summary))
    for split in SPLITS:
        console.print()
        console.print(targets_table(summary, split))
    console.print()
    said = f"{analysis.verdict(summary)} {analysis.comparison(summary)}"
    console.print(Text(said.strip()))
    console.print(Text(str(report), style="dim"), soft_wrap=True)


def report_on(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page about a race or about runs, and return where it is.

    By default the page of a race is in its directory, with its picture, and that of runs in the
    current directory.
    """
    races = [race for race in map(RaceDirectory, paths) if race.exists()]
    if not races:
        written = out or Path("report.html")
        write_report([RunDirectory(path) for path in paths], written)
        return written
    if len(paths) > 1:
        raise ValueError(
            f"{races[0].path} is a race, which has a page of its own; report on it alone, or on "
            "its rungs"
        )
    written = out or races[0].path / "report.html"
    write_race_report(races[0], written)
    write_picture(races[0], written.with_name("picture.svg"))
    return written
