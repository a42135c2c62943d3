"""What a shell sees of the lab: files, a table or CSV, and one clear line for what is wrong."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dropmuon.cli import main
from dropmuon.lab import experiments
from dropmuon.lab.run import RunDirectory

TINY = [
    *("compare", "--dataset", "digits", "--model", "mlp", "--channels", "8"),
    *("--batch-size", "500", "--epochs", "1", "--seeds", "1", "--train-examples", "200"),
    *("--methods", "muon,drop-muon:uniform", "--targets", "20,99.9", "--threads", "1"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_compare_leaves_a_whole_run_and_prints_csv_where_no_person_reads(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--out", "run", "--logger", "tensorboard"]) == 0
    out, err = capsys.readouterr()
    names = {path.name for path in (here / "run").iterdir()}
    assert names >= {"config.json", "environment.json", "methods.json", "evaluations.jsonl"}
    assert names >= {"results.json", "results.csv", "report.html", "figures", "tensorboard"}
    rows = list(csv.DictReader(out.splitlines()))
    assert {row["method"] for row in rows} == {"muon", "drop-muon:uniform"}
    assert {row["target"] for row in rows} == {"20.0", "99.9"}
    assert err == ""
    assert {p.suffix for p in (here / "run" / "figures").iterdir()} == {".png", ".svg"}
    assert len(list((here / "run" / "tensorboard").rglob("events.*"))) == 2


def test_a_run_without_a_name_goes_below_runs(here: Path) -> None:
    assert main(TINY) == 0
    assert len(list((here / "runs").glob("digits-*/report.html"))) == 1


def test_learning_rates_are_shared_or_of_one_method(here: Path) -> None:
    assert main([*TINY, "--lr", "0.02", "--lr", "drop-muon:uniform=0.04", "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["lr"] == 0.02
    assert config["options"] == {"drop-muon:uniform": {"lr": 0.04}}


def test_settings_come_from_a_file_and_the_command_line_goes_first(here: Path) -> None:
    (here / "c.yaml").write_text("epochs: 7\nlr: 0.03\noptions: {muon: {lr: 0.05}}\n")
    assert main([*TINY, "--config", "c.yaml", "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["epochs"], config["lr"]) == (1, 0.03)
    assert config["options"] == {"muon": {"lr": 0.05}}


def test_a_finished_run_is_resumed_without_naming_its_settings(here: Path) -> None:
    assert main([*TINY, "--out", "run"]) == 0
    before = (here / "run" / "evaluations.jsonl").read_text()
    assert main(["compare", "--resume", "--out", "run"]) == 0
    assert (here / "run" / "evaluations.jsonl").read_text() == before


@pytest.mark.parametrize("request_to_stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    here: Path, request_to_stop: signal.Signals
) -> None:
    long = [*TINY, "--epochs", "3000", "--evaluations-per-epoch", "3", "--out", "run"]
    command = [sys.executable, "-m", "dropmuon.cli", *long]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    lines = here / "run" / "evaluations.jsonl"
    deadline = time.monotonic() + 60
    while not (lines.exists() and lines.read_text().count("\n") > 4):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(request_to_stop)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "dropmuon: stopped; go on with: dropmuon compare --resume --out run"
    assert "Traceback" not in out + err
    assert (here / "run" / "report.html").exists()
    assert list((here / "run" / "checkpoints").iterdir())


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
    small = {**experiments.EXPERIMENTS["mnist"], "dataset": "digits", "batch_size": 1000}
    small["channels"] = (8, 8)
    monkeypatch.setitem(experiments.EXPERIMENTS, "mnist", small)
    assert main(["reproduce", "mnist", "--scale", "0.1", "--seeds", "1", "--out", "run"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["scale"], config["epochs"], config["channels"]) == (0.1, 2, [4, 4])


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


def wrong(*arguments: str, words: str) -> object:
    return pytest.param(arguments, words, id=" ".join(arguments)[:60])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        wrong("compare", "--dataset", "minst", words="did you mean 'mnist'"),
        wrong("compare", "--methods", "moun", words="did you mean 'muon'"),
        wrong("compare", "--dataset", "cifar10", "--model", "gpt", words="takes bytes"),
        wrong("compare", "--batch-size", "100000", words="batch_size must be at most the 7000"),
        wrong("compare", "--targets", "120", words="(0, 100]"),
        wrong("compare", "--lr", "fast", words="--lr must be a number or METHOD=number"),
        wrong("compare", "--lr", "sgd=0.1", words="options must be one of"),
        wrong("compare", "--out", "used", words="exists and is not empty"),
        wrong("compare", "--out", "file", words="file is a file; choose a directory"),
        wrong("compare", "--out", "file/run", words="file/run"),
        wrong("compare", "--resume", words="--resume needs --out"),
        wrong("compare", "--resume", "--out", "nowhere", words="is not a run of dropmuon"),
        wrong("compare", "--config", "nowhere.yaml", words="nowhere.yaml"),
        wrong("compare", "--config", "unknown.yaml", words="did you mean 'epochs'"),
        wrong("compare", "--logger", "tensorbord", words="did you mean 'tensorboard'"),
        wrong("compare", "--device", "cuda:99", words="cuda:99"),
        wrong("reproduce", "minst", words="did you mean 'mnist'"),
        wrong("reproduce", "mnist", "--scale", "3", words="scale must be in (0, 1]"),
        wrong("report", "nowhere", words="is not a run of dropmuon"),
        wrong("data", "fetch", "minst", words="did you mean 'mnist'"),
        wrong("sweep", "nowhere.yaml", words="nowhere.yaml"),
        wrong("sweep", "unknown.yaml", words="epohcs"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    (here / "used").mkdir()
    (here / "used" / "thesis.tex").write_text("precious")
    (here / "file").write_text("precious")
    (here / "unknown.yaml").write_text("epohcs: 3")
    before = sorted(here.rglob("*"))
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dropmuon: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert sorted(here.rglob("*")) == before


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "--seeds", ""], "argument --seeds: must be whole numbers such as 1,2,3"),
        (["compare", "--targets", "abc"], "must be numbers such as 60,70.5, got 'abc'"),
        (["compare", "--channels", "1.5"], "must be whole numbers"),
        (["compare", "--epochs", "few"], "argument --epochs: invalid int value: 'few'"),
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


def test_all_experiments_go_on_where_they_were(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"dataset": "digits", "batch_size": 1000, "channels": (8, 8)}
    small = {name: {**each, **shared} for name, each in experiments.EXPERIMENTS.items()}
    monkeypatch.setattr(experiments, "EXPERIMENTS", dict(list(small.items())[:2]))
    common = ["--scale", "0.1", "--seeds", "1", "--epochs", "2", "--methods", "muon"]
    assert main(["reproduce", "mnist", *common, "--out", "all/mnist"]) == 0
    assert main(["reproduce", "all", *common, "--out", "all", "--resume"]) == 0
    assert sorted(path.name for path in (here / "all").iterdir()) == ["fashion-mnist", "mnist"]
