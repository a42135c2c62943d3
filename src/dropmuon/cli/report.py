"""`dropmuon report DIR...`: one page about one or several runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from dropmuon.checks import import_extra

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="write one page about one or several runs")
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="default: report.html"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    records = import_extra("dropmuon.lab.run", "lab")
    report = import_extra("dropmuon.lab.report", "lab")
    runs = [records.RunDirectory(path) for path in options.runs]
    report.write_report(runs, options.out)
    print(options.out)
    return 0
