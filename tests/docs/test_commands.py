"""Every command on the pages is one that exists, with options that exist."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from dropmuon.cli import main
from dropmuon.lab.config import Config
from tests.docs.pages import PAGES, ROOT, blocks, inline_code

SHELL = ("", "sh", "bash", "shell", "console")
"""Languages of fenced blocks that may hold commands; a block without one may be a drawing."""

PROGRAMS = ("dropmuon", "make", "python", "pip")
SETTINGS = (
    *("dataset", "model", "channels", "methods", "batch_size", "epochs", "seeds", "targets"),
    "tune",
)


class ParsedError(Exception):
    """Raised in place of running a command, once its arguments are parsed."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__("parsed")
        self.options = options


@pytest.fixture(autouse=True)
def _stop_after_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `parse_args` of every program parse for real, and stop it there."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, *arguments: Any) -> None:
        raise ParsedError(parse(parser, *arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)


def fenced_commands(page: str) -> Iterator[str]:
    for block in blocks(page, *SHELL):
        yield from block.text.replace("\\\n", " ").splitlines()


def inline_commands(page: str) -> Iterator[str]:
    """Yield commands of sentences; `dropmuon data list | verify` are two that share their start."""
    for code in inline_code(page):
        first, *others = code.split(" | ")
        start = first.rpartition(" ")[0]
        yield first
        yield from (f"{start} {other}" for other in others)


def commands(page: str) -> list[str]:
    lines = [*fenced_commands(page), *inline_commands(page)]
    stripped = [line.strip().removeprefix("$ ") for line in lines]
    return sorted({line for line in stripped if line.split(" ")[0] in PROGRAMS and " " in line})


COMMANDS = [pytest.param(line, id=f"{page}: {line}") for page in PAGES for line in commands(page)]


def parsed(program: Callable[[], object], line: str, capsys: pytest.CaptureFixture[str]) -> object:
    """Return the options that a program parsed, or fail with what it said."""
    try:
        program()
    except ParsedError as stop:
        return stop.options
    except SystemExit:
        pytest.fail(f"{line}\n{capsys.readouterr().err}")
    raise AssertionError(f"nothing was parsed of: {line}")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_on_a_page_exists(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *arguments = shlex.split(line, comments=True)
    check = {"dropmuon": check_dropmuon, "python": check_script}.get(program)
    if check is not None:
        check(line, arguments, capsys, monkeypatch)
    elif program == "make":
        check_make(arguments)
    else:
        check_pip(arguments)


def check_dropmuon(
    line: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command line parses it; the settings of a comparison and the files named are there."""
    if len(arguments) == 1:  # the command as such, perhaps without what it needs to run
        with pytest.raises(SystemExit, match=r"^0$"):
            main([*arguments, "--help"])
        return
    options = parsed(lambda: main(arguments), line, capsys)
    settings = {name: getattr(options, name, None) for name in SETTINGS}
    Config.of({name: value for name, value in settings.items() if value is not None})
    for argument in arguments:
        if argument.startswith(("examples/", "docs/")):
            assert (ROOT / argument).exists(), argument


def check_script(
    line: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script parses it; `pytorch_optimizer`, of the extra "bench", need not be there."""
    script, options = script_of(arguments)
    assert script.is_file(), script
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", MagicMock())
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    monkeypatch.setattr(sys, "path", [str(script.parent), str(ROOT), *sys.path])
    parsed(lambda: runpy.run_path(str(script), run_name="__main__"), line, capsys)


def script_of(arguments: list[str]) -> tuple[Path, list[str]]:
    """Return the file that Python runs, by its path or as a module, and the options of it."""
    if arguments[0] == "-m":
        return ROOT / (arguments[1].replace(".", "/") + ".py"), arguments[2:]
    return ROOT / arguments[0], arguments[1:]


def check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(arguments) <= targets


def check_pip(arguments: list[str]) -> None:
    """It installs this package, with extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    command, *options, package = arguments
    assert command == "install"
    assert set(options) <= {"-e"}
    name, _, extras = package.rstrip("]").partition("[")
    assert name in (".", project["name"])
    assert {each for each in extras.split(",") if each} <= set(project["optional-dependencies"])


def test_the_pages_name_commands() -> None:
    found = [line.split(" ")[1] for page in PAGES for line in commands(page)]
    expected = {"compare", "race", "sweep", "report", "reproduce", "plan", "data", "demo", "test"}
    assert expected <= set(found)


@pytest.mark.parametrize("page", PAGES)
def test_an_option_in_a_sentence_exists(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = {code.split()[0] for code in inline_code(page) if code.startswith("--")}
    accepted = set()
    for command in ("compare", "race", "reproduce", "sweep", "report", "plan", "data"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        accepted |= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    for line in commands(page):
        program, *arguments = line.split()
        if program == "python":  # a sentence may be about a script that the page names
            text = script_of(arguments)[0].read_text(encoding="utf-8")
            accepted |= set(re.findall(r"\"(--[a-z-]+)\"", text))
    assert named <= accepted
