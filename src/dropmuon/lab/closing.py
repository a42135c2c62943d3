"""What a run ends with: results on disk, a table for the reader, figures and a report."""

from __future__ import annotations

import sys

from rich.console import Console

from dropmuon.lab import figures, results
from dropmuon.lab.records import RunDirectory
from dropmuon.lab.reporting import write_report

__all__ = ["close"]


def close(run: RunDirectory, *, terminal: bool) -> None:
    """Write results, figures and report; print a table, or CSV where no person reads it."""
    summary = results.summarize(run)
    results.write(run, summary)
    figures.write(run, summary)
    report = run.path / "report.html"
    write_report([run], report)
    if not terminal:
        sys.stdout.write((run.path / "results.csv").read_text())
        return
    console = Console()
    for split in ("train", "test"):
        console.print(results.table(summary, split))
    console.print(results.verdict(summary))
    console.print(f"[dim]{report}[/dim]")
