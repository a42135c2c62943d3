"""Binary batches are rebuilt from pictures with an image per row."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dropmuon.lab.data.checksums import File
from dropmuon.lab.data.cifar import from_pictures

LABELS = np.arange(50_000) % 10


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
    from_pictures(download, [File(name, 30_730_000, "sha1:0") for name in wanted], tmp_path)
    for name, labels in wanted.items():
        records = np.fromfile(tmp_path / name, np.uint8).reshape(10_000, 3073)
        np.testing.assert_array_equal(records[:, 0], labels[:10_000])
        planes = records[:, 1:].reshape(-1, 3, 1024)
        np.testing.assert_array_equal(planes.transpose(0, 2, 1), pixels)


def test_pictures_of_another_shape_are_refused(tmp_path: Path, pixels: np.ndarray):
    download = archive(tmp_path / "package.tgz", test_batch=encoded(pixels[:100]))
    with pytest.raises(ValueError, match=r"shape \(100, 1024, 3\)"):
        from_pictures(download, [File("test_batch.bin", 1, "sha1:0")], tmp_path)


def test_a_missing_picture_is_named(tmp_path: Path):
    download = archive(tmp_path / "package.tgz")
    with pytest.raises(ValueError, match=r"has no data_batch_1\.png$"):
        from_pictures(download, [File("data_batch_1.bin", 1, "sha1:0")], tmp_path)
