"""The catalogue has every data set, with sources that back each other up."""

from __future__ import annotations

from pathlib import Path

import pytest

from dropmuon.lab import data
from dropmuon.lab.data.catalogue import CATALOGUE, find


def test_names_are_in_the_order_they_are_listed():
    assert (
        *("fashion-mini", "mnist", "fashion-mnist", "cifar10"),
        *("shakespeare", "enwik8", "digits"),
    ) == data.NAMES


def test_the_embedded_part_is_at_most_4_mb_and_its_note_states_its_checksum(tmp_path: Path):
    ((file, path),) = find("fashion-mini").places(tmp_path)
    assert path.stat().st_size == file.size <= 4_000_000
    note = path.with_name("FASHION_MINI.md").read_text()
    assert file.checksum.removeprefix("sha256:") in note
    assert "MIT License" in note


def test_texts_are_told_from_images_without_loading_them():
    texts = [name for name in data.NAMES if data.kind_of(name) == "bytes"]
    assert texts == ["shakespeare", "enwik8"]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "shakespeare"])
def test_every_set_has_an_official_source_and_a_package(name: str):
    sources = [str(source) for source in CATALOGUE[name].sources]
    assert sources[0].startswith("http")
    assert not sources[-1].startswith("http")


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_source_is_read_over_a_plain_connection(name: str):
    assert not [each for each in map(str, CATALOGUE[name].sources) if each.startswith("http:")]
