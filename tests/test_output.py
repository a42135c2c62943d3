"""Tables, counts and durations as text; files that are whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropmuon import output
from dropmuon.output import write_json, write_text, write_with

WORDS = st.text("abcxyz0123 ", max_size=9).map(str.strip)


# Tables


def test_a_table_has_a_rule_below_its_header_and_no_space_at_the_end_of_a_line() -> None:
    found = output.aligned(["layer", "norm"], [["0", "Spectral"], ["head.out", "Sign"]])
    assert found.splitlines() == [
        "layer     norm",
        "--------  --------",
        "0         Spectral",
        "head.out  Sign",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert output.aligned(["a", "bcd"], []) == "a  bcd\n-  ---"


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=1)
    )
)
def test_columns_begin_at_one_place_and_hold_their_cells(lines: list[list[str]]) -> None:
    header, *rows = lines
    shown = output.aligned(header, rows).split("\n")
    assert len(shown) == len(rows) + 2
    rule = shown.pop(1)
    start = 0
    for column in range(len(header)):
        width = max(len(line[column]) for line in lines)
        assert rule[start : start + width] == "-" * width
        for cells, line in zip(lines, shown, strict=True):
            assert line[start : start + width].rstrip() == cells[column]
            assert line == line.rstrip()
        start += width + 2
    assert len(rule) == start - 2


def test_a_row_of_another_length_than_the_header_is_an_error() -> None:
    with pytest.raises(IndexError):
        output.aligned(["a", "b"], [["1"]])
    with pytest.raises(ValueError, match="shorter"):
        output.aligned(["a"], [["1", "2"]])


# Counts


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (1080, "1.08k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_000_000, "1M"),
        (999_999_999, "1B"),
        (1_234_567, "1.23M"),
        (7_000_000_000, "7B"),
    ],
)
def test_counts_have_three_figures(count: int, expected: str) -> None:
    assert output.short_count(count) == expected


# Durations


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0.0 s"),
        (5e-5, "50 µs"),
        (0.0123, "12.3 ms"),
        (12.34, "12.3 s"),
        (99.94, "99.9 s"),
        (99.95, "100 s"),
        (119.0, "119 s"),
        (120.0, "2.0 min"),
        (600.0, "10.0 min"),
        (7199.0, "120.0 min"),
        (7200.0, "2.0 h"),
        (3 * 3600.0, "3.0 h"),
        (None, "–"),
    ],
)
def test_durations_are_short(value: float | None, expected: str) -> None:
    assert output.duration(value) == expected


def test_a_write_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    before = path.read_bytes()

    def fill(file: IO[bytes]) -> None:
        file.write(b"half of ")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_with(path, fill)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [float("nan"), object()])
def test_what_json_cannot_say_is_refused_before_anything_is_written(
    tmp_path: Path, content: object
) -> None:
    with pytest.raises((TypeError, ValueError)):
        write_json(tmp_path / "a.json", content)
    assert not list(tmp_path.iterdir())


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "é")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "é"
    assert (tmp_path / "a.txt").stat().st_mode & 0o444 == 0o444


def test_directories_are_made_for_a_file(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "deep" / "file", "there")
    assert (tmp_path / "new" / "deep" / "file").read_text() == "there"
