"""The page of all commands: one screen, every command once, examples that parse."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from dropmuon.cli import main
from dropmuon.cli.parser import make_parser

PAGE = make_parser().format_help()
PARAGRAPHS = PAGE.strip().split("\n\n")


def test_the_page_fits_a_small_terminal() -> None:
    lines = PAGE.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_the_page_lists_every_command_once() -> None:
    listed = re.findall(r"^  (\w+)  ", PAGE, re.M)
    (commands,) = [
        each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction)
    ]
    assert sorted(listed) == sorted(commands.choices)


def test_every_command_has_a_line_about_it() -> None:
    assert "None" not in PAGE
    assert all(len(line.split("  ")) >= 3 for line in PARAGRAPHS[1].splitlines()[1:])


@pytest.mark.parametrize("line", PARAGRAPHS[3].splitlines()[1:])
def test_the_examples_of_the_page_are_commands(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "dropmuon"
    assert callable(make_parser().parse_args(arguments).run)


def test_help_shows_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    assert capsys.readouterr().out == PAGE
