"""Reports: the results of a run, and one page about one or several runs."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from dropmuon.lab import analysis
from dropmuon.lab.analysis.series import SPLITS
from dropmuon.lab.report.figures import write_figures
from dropmuon.lab.report.page import write_report
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.terminal import costs_table, targets_table

__all__ = ["conclude", "write_report"]


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
    console.print(Text(analysis.verdict(summary)))
    console.print(Text(str(report), style="dim"), soft_wrap=True)
