"""`dropmuon doctor`: what of the environment matters, one line for each subject."""

from __future__ import annotations

import argparse
import textwrap
from importlib import import_module

__all__ = ["add"]

_COLUMNS = 80
_INDENT = " " * 17


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="check what matters of this environment, and time a step",
        description="Check versions, extras, threads, products in bfloat16 and the cache of data, "
        "and time a step. Exit code 0; or 1, if something is wrong that keeps dropmuon from "
        "working. A note is about what may be slow, or is not installed.",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    wrong = []
    for found in import_module("dropmuon.cli.environment").findings():
        lines = textwrap.wrap(found.text, _COLUMNS, break_long_words=False, break_on_hyphens=False)
        body = f"\n{_INDENT}".join(lines)
        print(f"{found.state:5}  {found.subject:8}  {body}", flush=True)
        wrong += [found.subject] if found.state == "wrong" else []
    print(f"\nwrong: {', '.join(wrong)}" if wrong else "\nnothing is wrong")
    return int(bool(wrong))
