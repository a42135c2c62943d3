"""What a run ends with: results on disk, tables for the reader, figures and a report."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from dropmuon.lab.analysis import results
from dropmuon.lab.analysis.series import SPLITS
from dropmuon.lab.report import figures, write_report
from dropmuon.lab.report.terminal import costs_table, targets_table
from dropmuon.lab.run import RunDirectory

__all__ = ["close"]


def close(run: RunDirectory, *, terminal: bool) -> None:
    """Write results, figures and report; print tables, or CSV where no person reads them."""
    summary = results.summarize(run)
    results.write(run, summary)
    figures.write(run, summary)
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
    console.print(Text(results.verdict(summary)))
    console.print(Text(str(report), style="dim"), soft_wrap=True)
