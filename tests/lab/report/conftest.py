"""Runs and their reports, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dropmuon.lab.report import write_report
from dropmuon.lab.run import RunDirectory
from tests.lab.synthetic_runs import write_run

STOP = {("muon", 2): 4, ("drop-muon:uniform", 1): 0, ("adamw", 0): 1}


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Return a directory with a whole run, a cut one, a small one of one seed, and reports."""
    path = tmp_path_factory.mktemp("reports")
    write_run(path / "whole", title="<b>one & two</b>")
    write_run(path / "cut", stop=STOP, lr=0.05)
    write_run(path / "single", seeds=1, scale=0.5)
    runs = [RunDirectory(path / name) for name in ("whole", "cut", "single")]
    for run in runs:
        write_report([run], run.path / "report.html")
    write_report(runs, path / "all.html")
    return path
