"""The embedded part is what its script makes, byte for byte."""

from __future__ import annotations

import importlib.util
import io
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dropmuon.lab import data
from dropmuon.lab.data.cache import contents
from dropmuon.lab.data.catalogue import find
from dropmuon.lab.data.readers import idx

SCRIPT = Path(__file__).parents[3] / "scripts/make_fashion_mini.py"


def embedded() -> bytes:
    return contents(find("fashion-mini"), Path())["fashion_mini.npz"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_fashion_mini", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    zlib.ZLIB_RUNTIME_VERSION.endswith("zlib-ng"), reason="zlib-ng compresses to other bytes"
)
def test_the_archive_is_reproduced_byte_for_byte(script: ModuleType):
    with np.load(io.BytesIO(embedded())) as arrays:
        assert script.archive(dict(arrays)) == embedded()


def test_the_part_is_the_first_of_each_class(script: ModuleType):
    if not {each.name: each for each in data.status()}["fashion-mnist"].ready:
        pytest.skip("fashion-mnist is not in the cache; dropmuon data fetch fashion-mnist")
    part = script.part(idx(contents(find("fashion-mnist"), data.cache_directory())))
    with np.load(io.BytesIO(embedded())) as arrays:
        assert sorted(arrays) == sorted(part)
        for name, array in part.items():
            np.testing.assert_array_equal(arrays[name], array)


def test_the_first_of_each_class_keep_their_order(script: ModuleType):
    labels = np.array([1, 1, 0, 1, 0, 0], dtype=np.uint8)
    assert script.first_of_each_class(labels, 2).tolist() == [0, 1, 2, 4]
