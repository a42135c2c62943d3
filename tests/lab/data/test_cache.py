"""The cache is where the user says, and reports what it has."""

from __future__ import annotations

from pathlib import Path

import pooch
import pytest

from dropmuon.lab import data
from dropmuon.lab.data.catalogue import find


def test_the_argument_goes_before_the_variable_before_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DROPMUON_DATA", str(tmp_path / "variable"))
    assert data.cache_directory(tmp_path / "argument") == tmp_path / "argument"
    assert data.cache_directory() == tmp_path / "variable"
    monkeypatch.setenv("DROPMUON_DATA", "")
    assert data.cache_directory() == Path(pooch.os_cache("dropmuon"))
    monkeypatch.delenv("DROPMUON_DATA")
    assert data.cache_directory() == Path(pooch.os_cache("dropmuon"))


def test_a_file_is_no_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("DROPMUON_DATA", str(file))
    for call in (data.status, data.verify, lambda: data.fetch("mnist"), lambda: data.load("mnist")):
        with pytest.raises(ValueError, match=r"^DROPMUON_DATA must be a directory, got .*file"):
            call()
    with pytest.raises(ValueError, match=r"^cache must be a directory"):
        data.status(file)


def test_an_empty_cache_has_what_needs_no_fetching(tmp_path: Path):
    states = {each.name: each.state for each in data.status(tmp_path)}
    assert tuple(states) == data.NAMES
    assert states.pop("fashion-mini") == states.pop("digits") == "included"
    assert set(states.values()) == {"absent"}
    assert list(tmp_path.iterdir()) == []


def test_status_looks_at_sizes(tmp_path: Path):
    (tmp_path / "shakespeare").mkdir()
    path = tmp_path / "shakespeare/input.txt"
    for size, state in ((10, "incomplete"), (1_115_394, "cached")):
        path.write_bytes(bytes(size))
        found = {each.name: each for each in data.status(tmp_path)}["shakespeare"]
        assert found.state == state
        assert found.ready == (state == "cached")


def test_verify_reads_every_file(tmp_path: Path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-labels-idx1-ubyte").write_bytes(bytes(60_008))
    checks = data.verify(tmp_path)
    assert {each.name for each in checks} == set(data.NAMES) - {"digits"}
    assert [each.state for each in checks if each.name == "mnist"] == [
        *("missing", "wrong", "missing", "missing"),
    ]
    assert all((each.found is None) == (each.state == "missing") for each in checks)


def test_verify_takes_names(tmp_path: Path):
    (check,) = data.verify(tmp_path, ["fashion-mini"])
    assert (check.state, check.found) == ("ok", find("fashion-mini").files[0].checksum)
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        data.verify(tmp_path, ["cifar"])
