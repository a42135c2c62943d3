"""The parser of the command line, and the page that `dropmuon --help` shows."""

from __future__ import annotations

import argparse
from typing import NoReturn

from dropmuon.cli import compare, completion, data, doctor, plan, sweep
from dropmuon.version import __version__

__all__ = ["WRONG", "make_parser"]

WRONG = "dropmuon: error:"

_GROUPS = {
    "your model and machine": ("plan", "doctor", "completion"),
    "methods side by side (extra: lab)": (
        *("race", "compare", "sweep", "reproduce", "report"),
        "data",
    ),
}
"""The commands as the page of all commands shows them."""

_EXAMPLES = (
    "dropmuon doctor",
    "dropmuon plan my_project.training:problem --out plan.json",
    "dropmuon race --dataset mnist --methods full,drop-muon:adaptive --tune 20",
)
_LAST = "dropmuon COMMAND --help explains a command, --version shows the version."


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands; nothing that a command needs to run is imported."""
    parser = _Page(
        prog="dropmuon",
        description="Train PyTorch models in less time by updating fewer layers.",
    )
    parser.add_argument("--version", action="version", version=__version__, help="show the version")
    kind: type[argparse.ArgumentParser] = _Parser
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=kind)
    for command in (compare, sweep, plan, data, doctor):
        command.add(commands)
    completion.add(commands, parser)
    parser.commands = commands
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, like the rest of dropmuon."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{WRONG} {message}; see {self.prog} --help\n")


class _Page(_Parser):
    """The parser of the program itself, whose help is one screen: groups of commands, examples."""

    commands: argparse._SubParsersAction[argparse.ArgumentParser]

    def format_help(self) -> str:
        """Return the page."""
        about = {each.dest: each.help for each in self.commands._choices_actions}
        lines = [f"usage: {self.prog} COMMAND [OPTION ...]", str(self.description), ""]
        for title, names in _GROUPS.items():
            lines += [f"{title}:", *(f"  {name:10}  {about[name]}" for name in names), ""]
        lines += ["examples:", *(f"  {line}" for line in _EXAMPLES), "", _LAST]
        return "\n".join(lines) + "\n"
