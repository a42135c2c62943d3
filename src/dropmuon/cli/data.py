"""`dropmuon data list | fetch NAME | verify [NAME]`: the data sets and their cache."""

from __future__ import annotations

import argparse
import sys

from dropmuon.checks import import_extra
from dropmuon.output import aligned

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its three actions."""
    parser = commands.add_parser("data", help="list, fetch and verify data sets")
    actions = parser.add_subparsers(required=True, metavar="action")
    actions.add_parser("list", help="list the data sets and whether they are cached").set_defaults(
        run=_list
    )
    fetch = actions.add_parser("fetch", help="download data sets into the cache")
    fetch.add_argument("names", nargs="+", metavar="NAME")
    fetch.set_defaults(run=_fetch)
    verify = actions.add_parser("verify", help="compare files with their checksums")
    verify.add_argument("names", nargs="*", metavar="NAME")
    verify.set_defaults(run=_verify)


def _list(options: argparse.Namespace) -> int:
    data = import_extra("dropmuon.lab.data", "lab")
    rows = [
        (each.name, each.state, _megabytes(each.size), each.licence, each.about)
        for each in data.status()
    ]
    print(aligned(("name", "state", "size", "licence", "about"), rows))
    print(f"\ncache: {data.cache_directory()}")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    data = import_extra("dropmuon.lab.data", "lab")
    for name in options.names:
        found = data.fetch(name, show_progress=sys.stderr.isatty())
        place = "needs no fetching" if found.directory is None else f"is in {found.directory}"
        fetched = f"{len(found.files)} files from {', '.join(found.sources)}"
        print(f"{name} {place}{f' ({fetched})' if found.files else ''}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    """Return exit code 1 if a file is wrong, or missing from a data set that was named."""
    data = import_extra("dropmuon.lab.data", "lab")
    checks = data.verify(names=options.names or None)
    rows = [(each.name, each.file.name, each.state) for each in checks]
    print(aligned(("name", "file", "state"), rows))
    bad = {"wrong", "missing"} if options.names else {"wrong"}
    return int(any(each.state in bad for each in checks))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
