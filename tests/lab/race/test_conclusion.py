"""What a race leaves and prints at its end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from dropmuon.lab.analysis.race import summarize_race
from dropmuon.lab.race import conclude_race
from dropmuon.lab.race.conclusion import race_table
from tests.lab.synthetic_races import write_race


def test_a_terminal_gets_the_sentence_and_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    conclude_race(write_race(tmp_path / "race"), terminal=True)
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("drop-muon:parts-4 won: full needs 1.6")
    assert "At the whole budget, and how many times the cost full needs for the same" in out
    assert out.endswith("race/report.html")
    names = {path.name for path in (tmp_path / "race").iterdir()}
    assert names >= {"results.json", "results.csv", "report.html", "picture.svg"}


def test_where_no_person_reads_csv_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude_race(write_race(tmp_path / "race"), terminal=False)
    assert capsys.readouterr().out == (tmp_path / "race" / "results.csv").read_text()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_cells_are_never_cut(tmp_path: Path, width: int) -> None:
    race = write_race(tmp_path / "race")
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    console.print(race_table(summarize_race(race), race.settings))
    assert "…" not in file.getvalue()
    assert all(len(line) <= width for line in file.getvalue().splitlines())


def test_a_race_without_a_finished_rung_has_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude_race(write_race(tmp_path / "race", finished=0), terminal=True)
    out = capsys.readouterr().out
    assert out.startswith("Nothing to compare yet")
    assert "method" not in out
