"""What the tests of the command line share: an empty directory, and mistakes in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dropmuon.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory, the current one during the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuses(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[tuple[str, ...]], str]:
    """Return a function that runs a mistaken command, and returns the one line that it says.

    Nothing else is printed, and no file changes.
    """

    def run(arguments: tuple[str, ...]) -> str:
        before = sorted(here.rglob("*"))
        assert main(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("dropmuon: error: ")
        assert err.count("\n") == 1
        assert sorted(here.rglob("*")) == before
        return err

    return run
