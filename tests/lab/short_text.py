"""Texts that take the place of those in the cache."""

from __future__ import annotations

import pytest

from dropmuon.lab.data import cache, tensors
from dropmuon.lab.data.catalogue import DataSet


def replace_texts(monkeypatch: pytest.MonkeyPatch, **texts: bytes) -> None:
    """Let data sets of these names have these texts; nothing is fetched."""
    read = cache.contents

    def contents(chosen: DataSet, *others: object) -> dict[str, bytes]:
        if chosen.name in texts:
            return {"text": texts[chosen.name]}
        return read(chosen, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(tensors, "contents", contents)
    monkeypatch.setattr(tensors, "is_missing", lambda *_: False)
