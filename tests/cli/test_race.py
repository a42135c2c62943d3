"""`dropmuon race` and `dropmuon report` on a race, as a shell sees them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dropmuon.cli import main
from dropmuon.lab.config import Config
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.run import RunDirectory
from tests.cli.mistakes import wrong
from tests.lab.synthetic_races import write_race

TINY = [
    *("race", "--dataset", "digits", "--model", "mlp", "--channels", "8", "--ladder", "0.5,1"),
    *("--batch-size", "500", "--epochs", "2", "--seeds", "1", "--train-examples", "200"),
    *("--methods", "full,drop-muon:uniform", "--targets", "20", "--threads", "1"),
]


def test_a_race_is_interrupted_resumed_and_reported(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append, count = RunDirectory.append, [0]

    def interrupted(self: RunDirectory, evaluation) -> None:
        count[0] += self.path.name == "rung-1.00"
        if count[0] == 3:
            raise KeyboardInterrupt
        append(self, evaluation)

    monkeypatch.setattr(RunDirectory, "append", interrupted)
    assert main([*TINY, "--out", "race"]) == 130
    out, err = capsys.readouterr()
    assert "dropmuon: stopped; continue with: dropmuon race --resume --out race" in err
    assert {row["rung"] for row in csv.DictReader(out.splitlines())} == {"0.5"}
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main(["race", "--resume", "--out", "race"]) == 0
    out, err = capsys.readouterr()
    assert "dropmuon: the whole budget: done; 2 of 2 budgets done" in err
    assert {row["rung"] for row in csv.DictReader(out.splitlines())} == {"0.5", "1.0"}
    assert RaceDirectory(Path("race")).finished == (0.5, 1.0)


def test_the_page_of_a_race_is_rewritten_in_its_place(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_race(here / "race")
    assert main(["report", "race"]) == 0
    assert capsys.readouterr().out == "race/report.html\n"
    assert "won: full needs" in (here / "race/report.html").read_text()
    assert main(["report", "race", "--out", "other.html"]) == 0
    assert (here / "other.html").exists()
    assert main(["report", "race/rung-1.00"]) == 0
    assert (here / "report.html").exists()


def test_a_race_is_repeated_from_its_own_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("dropmuon.lab.race.conclude_race", lambda race, terminal: None)
    monkeypatch.setattr(
        "dropmuon.lab.race.race", lambda config, out, **more: asked.append((config, more))
    )
    content = {"ladder": [1, 3], "settings": {"epochs": 7}, "finished": [1]}
    (here / "race.json").write_text(json.dumps(content))
    assert main(["race", "--config", "race.json", "--lr", "0.2"]) == 0
    config, more = asked[0]
    assert (config.epochs, config.lr, more["ladder"]) == (7, 0.2, (1.0, 3.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        wrong("race", "--ladder", "1", words="ladder must have at least two rungs, got [1.0]"),
        wrong("race", "--ladder", "1,0.5", words="ladder must increase, got 0.5 after 1"),
        wrong("race", "--ladder", "0,1", words="ladder must have positive numbers, got 0.0"),
        wrong("race", "--ladder", "1,nan", words="ladder must have positive numbers, got nan"),
        wrong("race", "--methods", "ful", words="did you mean 'full'"),
        wrong("race", "--batch-size", "100000", words="batch_size must be at most the 7000"),
        wrong("race", "--resume", words="--resume needs --out, the directory of the race"),
        wrong("race", "--resume", "--out", "nowhere", words="nowhere is not a race"),
        wrong("race", "--resume", "--out", "file", words="file is not a race"),
        wrong("race", "--resume", "--out", "begun", "--lr", "9", words="lr must be what the run"),
        wrong("race", "--resume", "--out", "begun", "--ladder", "1,2", words="ladder must keep"),
        wrong("race", "--out", "race", words="exists and is not empty"),
        wrong("race", "--out", "file", words="file is a file; choose a directory"),
        wrong("report", "race", "race/rung-1.00", words="report on it alone, or on its rungs"),
        wrong("report", "nowhere", words="is not a dropmuon run"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_leaves_nothing(
    here: Path,
    refuses: Callable[[tuple[str, ...]], str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    write_race(here / "race", seeds=1)
    RaceDirectory(here / "begun").begin((0.5, 1.0), Config().to_json())
    (here / "file").write_text("precious")
    assert words in refuses(arguments)


def test_a_ladder_that_cannot_be_read_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["race", "--ladder", "half,1"])
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "argument --ladder: must be numbers such as" in err
