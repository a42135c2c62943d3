"""The command line as a whole: one clear line and exit code 2 for whatever is wrong."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dropmuon import __version__
from dropmuon.checks import import_extra
from dropmuon.cli import main
from tests.cli.mistakes import wrong
from tests.lab.short_text import replace_texts


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_it_runs_as_a_module_too() -> None:
    command = [sys.executable, "-m", "dropmuon.cli", "--version"]
    assert subprocess.check_output(command, text=True).strip() == __version__


def test_the_handler_of_sigterm_is_restored(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["report", "nowhere"]) == 2
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_missing_package_is_named_with_the_extra_that_installs_it() -> None:
    with pytest.raises(ImportError, match=r"no_such_package.*pip install '\.\[lab\]' in a clone"):
        import_extra("no_such_package", "lab")


def test_data_sets_are_listed_and_verified(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROPMUON_DATA", str(here / "cache"))
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for word in ("fashion-mini", "included", "cifar10", "absent", str(here / "cache")):
        assert word in out
    assert main(["data", "verify"]) == 0
    assert main(["data", "verify", "mnist"]) == 1
    assert main(["data", "fetch", "fashion-mini"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        wrong("compare", "--dataset", "minst", words="did you mean 'mnist'"),
        wrong("compare", "--methods", "ful", words="did you mean 'full'"),
        wrong("compare", "--dataset", "cifar10", "--model", "gpt", words="takes bytes"),
        wrong("compare", "--batch-size", "100000", words="batch_size must be at most the 7000"),
        wrong("compare", "--targets", "120", words="(0, 100]"),
        wrong("compare", "--lr", "fast", words="--lr must be a number or METHOD=number"),
        wrong("compare", "--lr", "sgd=0.1", words="METHOD=RATE, must be one of"),
        wrong("compare", "--out", "used", words="exists and is not empty"),
        wrong("compare", "--out", "file", words="file is a file; choose a directory"),
        wrong("compare", "--out", "file/run", words="file/run"),
        wrong("compare", "--resume", words="--resume needs --out"),
        wrong("compare", "--resume", "--out", "nowhere", words="is not a dropmuon run"),
        wrong("compare", "--config", "nowhere.yaml", words="nowhere.yaml"),
        wrong("compare", "--config", "unknown.yaml", words="did you mean 'epochs'"),
        wrong("compare", "--logger", "tensorbord", words="did you mean 'tensorboard'"),
        wrong("compare", "--device", "cuda:99", words="cuda:99"),
        wrong("reproduce", "minst", words="did you mean 'mnist'"),
        wrong("reproduce", "mnist", "--scale", "3", words="scale must be in (0, 1]"),
        wrong("report", "nowhere", words="is not a dropmuon run"),
        wrong("data", "fetch", "minst", words="did you mean 'mnist'"),
        wrong("sweep", "nowhere.yaml", words="nowhere.yaml"),
        wrong("sweep", "unknown.yaml", words="epohcs"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    here: Path,
    refuses: Callable[[tuple[str, ...]], str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    (here / "used").mkdir()
    (here / "used" / "thesis.tex").write_text("precious")
    (here / "file").write_text("precious")
    (here / "unknown.yaml").write_text("epohcs: 3")
    assert words in refuses(arguments)


PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| `(--[^`]*)` \| `([^`]*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("options", "message"), LISTED, ids=[options for options, _ in LISTED])
def test_the_page_of_errors_quotes_what_compare_says(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    message: str,
) -> None:
    """Weights of a small CNN are there, as the page says, and a text that needs no fetching."""
    replace_texts(monkeypatch, shakespeare=bytes(1_115_394))
    others = nn.Sequential(OrderedDict(conv1=nn.Sequential(nn.Conv2d(1, 4, 3))))
    torch.save(others.state_dict(), here / "other.pt")
    assert main(["compare", *shlex.split(options)]) == 2
    out, err = capsys.readouterr()
    wanted = ".*".join(re.escape(part) for part in message.split("…"))
    assert re.fullmatch(f"dropmuon: error: {wanted}\n", err), err
    assert (out, [path.name for path in here.iterdir()]) == ("", ["other.pt"])


def test_the_page_of_errors_lists_those_of_compare() -> None:
    assert len(LISTED) > 15


def test_a_damaged_tuning_cache_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        *("compare", "--dataset", "digits", "--model", "mlp", "--channels", "4", "--seeds", "1"),
        *("--batch-size", "500", "--epochs", "1", "--methods", "full", "--targets", "20"),
        *("--tune", "1", "--tune-cache", "tuned"),
    ]
    assert main([*arguments, "--out", "first"]) == 0
    capsys.readouterr()
    (path,) = (here / "tuned").iterdir()
    path.write_text("{")
    assert main([*arguments, "--out", "second"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"tuning cache tuned/{path.name} is damaged" in err
    assert "remove it, and its method is tuned again" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "--seeds", ""], "argument --seeds: must be whole numbers such as 1,2,3"),
        (["compare", "--targets", "abc"], "must be numbers such as 60,70.5, got 'abc'"),
        (["compare", "--channels", "1.5"], "must be whole numbers"),
        (["compare", "--epochs", "few"], "argument --epochs: invalid float value: 'few'"),
        (["compare", "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["comprae"], "invalid choice: 'comprae'"),
        ([], "the following arguments are required: command"),
    ],
)
def test_arguments_that_cannot_be_read_are_one_line_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("dropmuon: error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize("arguments", [["--help"], ["race", "--help"], ["data", "list"]])
def test_what_trains_nothing_imports_no_torch(arguments: list[str]) -> None:
    script = f"""
import sys
from dropmuon.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code
assert "torch" not in sys.modules, "torch"
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
