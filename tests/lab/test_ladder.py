"""The files of a race, and what makes a ladder."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dropmuon.lab.ladder import LADDER, RaceDirectory, checked_ladder


def test_a_race_is_read_back(tmp_path: Path) -> None:
    race = RaceDirectory(tmp_path / "race")
    assert not race.exists()
    race.begin(LADDER, {"lr": 0.1})
    assert race.exists()
    assert (race.ladder, race.settings, race.finished) == (LADDER, {"lr": 0.1}, ())
    for rung in (1.0, 0.5, 1.0):
        race.finish(rung)
    assert race.finished == (0.5, 1.0)


def test_every_rung_has_a_directory_of_its_own() -> None:
    race = RaceDirectory(Path("race"))
    names = [race.rung(rung).path.name for rung in (0.5, 0.7, 1, 10, 0.125, 0.1251)]
    assert names == [
        *("rung-0.50", "rung-0.70", "rung-1.00", "rung-10.00", "rung-0.125", "rung-0.1251")
    ]


def test_a_race_begins_in_an_empty_directory(tmp_path: Path) -> None:
    race = RaceDirectory(tmp_path / "race")
    race.begin(LADDER, {"lr": 0.1})
    with pytest.raises(ValueError, match="exists and is not empty; add --resume"):
        race.begin(LADDER, {"lr": 0.1})


@pytest.mark.parametrize(
    ("rungs", "words"),
    [
        ([], "at least two rungs, got []"),
        ([1.0], "at least two rungs, got [1.0]; one budget is what `dropmuon compare` is for"),
        ([1.0, 0.5], "must increase, got 0.5 after 1; sort the rungs"),
        ([1.0, 1.0], "must increase, got 1 after 1"),
        ([0.0, 1.0], "positive numbers, got 0.0"),
        ([-1.0, 1.0], "positive numbers, got -1.0"),
        ([1.0, math.inf], "positive numbers, got inf"),
        ([math.nan, 1.0], "positive numbers, got nan"),
        (["half", 1.0], "positive numbers, got 'half'"),
        ([True, 2.0], "positive numbers, got True"),
    ],
)
def test_what_is_no_ladder_is_rejected(rungs: list[object], words: str) -> None:
    with pytest.raises(ValueError, match="ladder must") as caught:
        checked_ladder(rungs)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a race: it has no race.json; give a directory that"),
        ("{", "is not JSON"),
        ("[]", "must have ladder, settings and finished"),
        ("{}", "must have ladder, settings and finished"),
    ],
)
def test_a_directory_that_is_not_a_race_is_named(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "race.json").write_text(content)
    with pytest.raises(ValueError, match=str(tmp_path)) as caught:
        _ = RaceDirectory(tmp_path).ladder
    assert words in str(caught.value)
