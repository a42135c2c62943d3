"""`dropmuon sweep grid.yaml`: many comparisons, run by any number of workers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dropmuon.checks import import_extra

__all__ = ["add"]

_INTERRUPTED = 130


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "sweep", help="run a grid of comparisons; start it again for more workers"
    )
    parser.add_argument("grid", type=Path, help="YAML, TOML or JSON: base, grid, search, objective")
    parser.add_argument("--out", type=Path, help="directory of the sweep; runs/GRID by default")
    parser.add_argument(
        "--storage", help="URL of a database that workers share; by default a file in --out"
    )
    parser.add_argument("--max-cells", type=int, help="stop after this many cells")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    sweep = import_extra("dropmuon.lab.sweep", "lab")
    out = options.out or Path("runs") / options.grid.stem
    summary = sweep.run_sweep(
        options.grid, out, storage=options.storage, max_cells=options.max_cells, on_event=_say
    )
    print(summary.text())
    print(f"\nreport: dropmuon report {out / 'cells'}/*")
    return _INTERRUPTED if summary.interrupted else 0


def _say(event: Any) -> None:
    print(f"dropmuon: {event.text}", file=sys.stderr)
