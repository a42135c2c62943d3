"""Files are written as a whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from dropmuon.files import write_json, write_text, write_with


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
