"""A data set of two small files, for tests of fetching."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from dropmuon.lab.data.catalogue import DataSet
from dropmuon.lab.data.readers import text
from dropmuon.lab.data.sources import File, Source, Web, as_is

FIRST, SECOND = b"first file " * 5000, b"second file " * 5000
NOWHERE = Web("http://127.0.0.1:1/{file}", as_is)


def described(name: str, content: bytes) -> File:
    return File(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


def small_set(*sources: Source) -> DataSet:
    files = (described("first", FIRST), described("second", SECOND))
    return DataSet("small", "two files", "none", text, files, sources)


def tar_of(**members: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def assert_complete(cache: Path) -> None:
    assert (cache / "small/first").read_bytes() == FIRST
    assert (cache / "small/second").read_bytes() == SECOND
    assert sorted(path.name for path in (cache / "small").iterdir()) == ["first", "second"]
    assert not (cache / ".fetching/small").exists()
