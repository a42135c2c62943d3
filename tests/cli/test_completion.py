"""Shells complete what the parser accepts."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dropmuon.cli import main
from dropmuon.cli.completion import _VALUES
from dropmuon.lab.config import EXPERIMENTS, Config
from dropmuon.lab.data import NAMES
from dropmuon.model.policies import POLICIES

SHELLS = ("bash", "zsh", "fish")


def needs(shell: str) -> pytest.MarkDecorator:
    missing = shutil.which(shell) is None
    return pytest.mark.skipif(missing, reason=f"{shell} is not installed")


@pytest.fixture
def script(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    """Return a function that writes the script of a shell to a file."""

    def write(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        path = here / f"script.{shell}"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        return path

    return write


def in_bash(script: Path, line: str) -> set[str]:
    words = " ".join(f"'{word}'" for word in line.split(" "))
    last = len(line.split(" ")) - 1
    code = f"""
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
_dropmuon
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return set(subprocess.check_output(["bash", "--norc", "-c", code], text=True).split())


def in_fish(script: Path, line: str) -> set[str]:
    code = f"source {script}; complete -C '{line}'"
    environment = {**os.environ, "HOME": str(script.parent)}
    out = subprocess.check_output(["fish", "--no-config", "-c", code], text=True, env=environment)
    return {each.split("\t")[0] for each in out.splitlines()}


def typed_in_zsh(script: Path, keys: str) -> str:
    """Type keys at the prompt of a zsh, and return what its command `dropmuon` was called with."""
    typed = (
        "autoload -Uz compinit; compinit -u -D\n"
        f"source {script}\n"
        'dropmuon() { print -r -- "called" "with<$*>" }\n'
        f"{keys}\n"
        "exit\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="dumb", HOME=str(script.parent))
        os.execvp("zsh", ["zsh", "-f", "-i"])
    os.write(terminal, typed.encode())
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # how Linux tells that the other side is closed
        pass
    os.close(terminal)
    os.waitpid(child, 0)
    calls = re.findall(r"called with<(.*?)>", shown.decode(errors="replace"))
    assert calls, shown.decode(errors="replace")
    return str(calls[-1])


CASES = [
    ("dropmuon ", {"plan", "race", "data", "doctor", "completion"}, {"--lr", "fetch"}),
    ("dropmuon ra", {"race"}, {"plan"}),
    ("dropmuon race --la", {"--ladder"}, {"--out"}),
    ("dropmuon race --dataset ", {"mnist", "fashion-mini"}, {"--out", "cnn"}),
    ("dropmuon race --dataset mnist --model ", {"cnn", "gpt"}, {"mnist"}),
    ("dropmuon data ", {"fetch", "list", "verify"}, {"race", "mnist"}),
    ("dropmuon data fetch ", {"mnist"}, {"fetch", "race"}),
    ("dropmuon completion ", {"bash", "zsh", "fish"}, {"race"}),
    ("dropmuon report r", {"runs"}, {"race", "report"}),
    ("dropmuon race --out r", {"runs"}, {"race"}),
    ("dropmuon race --lr ", set(), {"--out", "race", "mnist"}),
    ("dropmuon race --title data --mode", {"--model"}, {"fetch"}),
]


@pytest.mark.parametrize(("line", "offered", "not_offered"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize(
    ("shell", "complete"),
    [
        pytest.param("bash", in_bash, marks=needs("bash")),
        pytest.param("fish", in_fish, marks=needs("fish")),
    ],
)
def test_a_shell_offers_what_fits(
    shell: str,
    complete: Callable[[Path, str], set[str]],
    line: str,
    offered: set[str],
    not_offered: set[str],
    here: Path,
    script: Callable[[str], Path],
) -> None:
    (here / "runs").mkdir()
    found = {each.rstrip("/") for each in complete(script(shell), line)}
    assert offered <= found
    assert not not_offered & found


@pytest.mark.parametrize(
    ("keys", "called"),
    [
        ("dropmuon rac\t--lad\t1", "race --ladder 1"),
        ("dropmuon race --dataset fashion-mi\t", "race --dataset fashion-mini"),
        ("dropmuon data fet\tcif\t", "data fetch cifar10"),
        ("dropmuon report ru\t", "report runs"),
        ("dropmuon comple\tfi\t", "completion fish"),
    ],
)
@needs("zsh")
def test_zsh_completes_what_is_typed(
    keys: str, called: str, here: Path, script: Callable[[str], Path]
) -> None:
    (here / "runs").mkdir()
    assert typed_in_zsh(script("zsh"), keys).strip() == called


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_in_the_script(
    shell: str, script: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell).read_text(encoding="utf-8")
    options = set()
    for command in ("race", "reproduce", "sweep", "report", "plan", "data", "doctor"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        options |= set(re.findall(r"--([a-z][a-z-]+)", capsys.readouterr().out))
    assert len(options) > 40
    assert all(option in text for option in options)


def test_values_that_are_offered_are_accepted() -> None:
    assert set(_VALUES["dataset"]) == set(NAMES)
    assert set(_VALUES["experiment"]) == {*EXPERIMENTS, "all"}
    assert set(_VALUES["policy"]) == set(POLICIES)
    for name in ("model", "budget", "schedule"):
        for value in _VALUES[name]:
            text = {"dataset": "shakespeare"} if value == "gpt" else {}
            Config.of({name: value, **text})
