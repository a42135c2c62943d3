"""`dropmuon compare` and `reproduce`, as a shell sees them: files, a table or CSV."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dropmuon.cli import main
from dropmuon.lab import config as configurations
from dropmuon.lab.config import Config
from dropmuon.lab.run import RunDirectory

TINY = [
    *("compare", "--dataset", "digits", "--model", "mlp", "--channels", "8"),
    *("--batch-size", "500", "--epochs", "1", "--seeds", "1", "--train-examples", "200"),
    *("--methods", "full,drop-muon:uniform", "--targets", "20,99.9", "--threads", "1"),
]

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture
def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out figures and report, which take longer than the training."""
    monkeypatch.setattr("dropmuon.cli.compare._conclude", lambda run: None)


def test_compare_leaves_a_whole_run_and_prints_csv_where_no_person_reads(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--out", "run", "--logger", "tensorboard"]) == 0
    out, err = capsys.readouterr()
    names = {path.name for path in (here / "run").iterdir()}
    assert names >= {"config.json", "environment.json", "methods.json", "evaluations.jsonl"}
    assert names >= {"results.json", "results.csv", "report.html", "figures", "tensorboard"}
    rows = list(csv.DictReader(out.splitlines()))
    assert {row["method"] for row in rows} == {"full", "drop-muon:uniform"}
    assert {row["target"] for row in rows} == {"20.0", "99.9"}
    assert err == ""
    assert {p.suffix for p in (here / "run" / "figures").iterdir()} == {".png", ".svg"}
    assert len(list((here / "run" / "tensorboard").rglob("events.*"))) == 2


def test_a_run_without_a_name_goes_below_runs(here: Path) -> None:
    assert main(TINY) == 0
    assert len(list((here / "runs").glob("digits-*/report.html"))) == 1


@pytest.mark.usefixtures("_without_report")
def test_learning_rates_are_shared_or_of_one_method(here: Path) -> None:
    assert main([*TINY, "--lr", "0.02", "--lr", "drop-muon:uniform=0.04", "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["lr"] == 0.02
    assert config["options"] == {"drop-muon:uniform": {"lr": 0.04}}


@pytest.mark.usefixtures("_without_report")
def test_settings_come_from_a_file_and_the_command_line_goes_first(here: Path) -> None:
    (here / "c.yaml").write_text("epochs: 7\nlr: 0.03\noptions: {full: {lr: 0.05}}\n")
    assert main([*TINY, "--config", "c.yaml", "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["epochs"], config["lr"]) == (1, 0.03)
    assert config["options"] == {"full": {"lr": 0.05}}


@pytest.mark.usefixtures("_without_report")
def test_a_finished_run_is_resumed_without_naming_its_settings(here: Path) -> None:
    assert main([*TINY, "--out", "run"]) == 0
    before = (here / "run" / "evaluations.jsonl").read_text()
    assert main(["compare", "--resume", "--out", "run"]) == 0
    assert (here / "run" / "evaluations.jsonl").read_text() == before


@pytest.mark.usefixtures("_without_report")
def test_runs_may_share_what_was_tuned(here: Path) -> None:
    options = [*TINY, "--tune", "2", "--tune-share", "0.5", "--tune-cache", "tuned"]
    for name in ("first", "second"):
        assert main([*options, "--out", name, "--title", name]) == 0
    assert len(list((here / "tuned").iterdir())) == 2
    found = [(here / name / "tuned.json").read_text() for name in ("first", "second")]
    assert found[0] == found[1]
    assert not (here / "first" / "tuning").exists()


@pytest.mark.usefixtures("_without_report")
def test_a_schedule_and_a_budget_are_settings_like_any_other(here: Path) -> None:
    options = ["--budget", "epochs", "--schedule", "wsd", "--warm-up", "0.1", "--epochs", "0.7"]
    assert main([*TINY, *options, "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert [config[k] for k in ("budget", "schedule", "warm_up", "epochs")] == [
        *("epochs", "wsd", 0.1, 0.7),
    ]


COMMAND = """
import signal, sys
from dropmuon.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
"""The command, which hears SIGINT also where the tests run in the background and ignore it."""


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run dropmuon in a process that is gone, and its pipes closed, when the block ends."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("request_to_stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_done_and_says_how_to_continue(
    here: Path, request_to_stop: signal.Signals
) -> None:
    endless = [*TINY, "--epochs", "100000", "--evaluations-per-epoch", "3", "--out", "run"]
    lines = here / "run" / "evaluations.jsonl"
    with running(endless) as process:
        while not (lines.exists() and lines.read_text().count("\n") > 4):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(request_to_stop)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err.strip() == "dropmuon: stopped; continue with: dropmuon compare --resume --out run"
    assert "Traceback" not in out + err
    assert (here / "run" / "report.html").exists()
    assert list((here / "run" / "checkpoints").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="a shell that closes streams")
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "| head -0"])
def test_closed_streams_lose_no_run(here: Path, closed: str) -> None:
    command = shlex.join([sys.executable, "-c", COMMAND, *TINY, "--out", "run"])
    found = subprocess.run(
        ["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0
    assert found.stderr == ""
    assert (here / "run" / "report.html").exists()
    for line in (here / "run" / "evaluations.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize(("title", "shown"), [("Größe".encode(), "Größe"), (b"\xe9x", "\ufffdx")])
def test_a_title_that_is_not_ascii_is_shown_in_any_locale(
    here: Path, title: bytes, shown: str
) -> None:
    command: list[str | bytes] = [sys.executable, "-c", COMMAND, *TINY, "--out", "run"]
    command += ["--title", title]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, env={**os.environ, **plain}, check=True, capture_output=True)
    assert shown in (here / "run" / "report.html").read_text(encoding="utf-8")


def test_the_old_name_of_full_is_said_once_on_stderr(here: Path) -> None:
    options = [*TINY, "--methods", "muon", "--batch-size", "100000", "--out", "run"]
    with running(options) as process:
        _, err = process.communicate()
    assert process.returncode == 2
    renamed, refused = err.splitlines()
    assert renamed.startswith("dropmuon: method 'muon' is an old name")
    assert "batch_size" in refused


def test_runs_of_the_old_layout_are_reported_with_the_names_they_have(here: Path) -> None:
    assert main(["report", str(RESULTS / "gpt"), "--out", "old.html"]) == 0
    assert "muon" in (here / "old.html").read_text()


def test_a_run_of_the_old_layout_is_read_as_a_configuration() -> None:
    for path in RESULTS.rglob("config.json"):
        saved = json.loads(path.read_text())
        config = Config.of(saved)
        plain = json.loads(json.dumps(config.to_json()))
        assert {key: plain[key] for key in saved} == {**saved, "format": 2}
        if saved["format"] == 1:
            assert (config.budget, config.schedule) == ("epochs", "constant")
            assert config.baseline == "muon"
            assert config.method("muon").base == "full"


def test_reports_of_many_runs_become_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lr in ("0.02", "0.1"):
        assert main([*TINY, "--lr", lr, "--out", lr]) == 0
    capsys.readouterr()
    assert main(["report", "0.02", "0.1", "--out", "both.html"]) == 0
    assert capsys.readouterr().out == "both.html\n"
    page = (here / "both.html").read_text()
    assert "2 runs, 1 task" in page
    assert "budget 2 configurations per method" in page


def test_a_tiny_reproduction_says_its_scale(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(
        configurations.EXPERIMENTS["mnist"], dataset="digits", batch_size=1000, channels=(8, 8)
    )
    monkeypatch.setitem(configurations.EXPERIMENTS, "mnist", small)
    assert main(["reproduce", "mnist", "--scale", "0.1", "--seeds", "1", "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["scale"], config["epochs"], config["channels"]) == (0.1, 2, [4, 4])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without room")
def test_a_full_disk_is_one_clear_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def into_full(self: RunDirectory, evaluation: object) -> None:
        with Path("/dev/full").open("w") as file:
            file.write("x")

    monkeypatch.setattr(RunDirectory, "append", into_full)
    assert main([*TINY, "--out", "run"]) == 2
    assert "No space left on device for the run in run; free some space" in capsys.readouterr().err


@pytest.mark.usefixtures("_without_report")
def test_all_experiments_go_on_where_they_were(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        name: replace(each, dataset="digits", batch_size=1000, channels=(8, 8))
        for name, each in configurations.EXPERIMENTS.items()
    }
    monkeypatch.setattr(configurations, "EXPERIMENTS", dict(list(small.items())[:2]))
    common = ["--scale", "0.1", "--seeds", "1", "--epochs", "2", "--methods", "full"]
    assert main(["reproduce", "mnist", *common, "--out", "all/mnist"]) == 0
    assert main(["reproduce", "all", *common, "--out", "all", "--resume"]) == 0
    assert sorted(path.name for path in (here / "all").iterdir()) == ["fashion-mnist", "mnist"]


def test_five_classes_follow_the_other_five_and_the_report_says_from_where(here: Path) -> None:
    assert main([*TINY, "--classes", "0,1,2,3,4", "--out", "first"]) == 0
    assert main([*TINY, "--classes", "5,6,7,8,9", "--init", "first", "--out", "second"]) == 0
    settings = RunDirectory(here / "second").config
    assert (settings["classes"], settings["init"]) == ([5, 6, 7, 8, 9], "first")
    page = (here / "second" / "report.html").read_text(encoding="utf-8")
    assert "digits, classes 5,6,7,8,9 · mlp 8 · from first" in page
