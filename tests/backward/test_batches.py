"""Cutting a batch into parts."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dropmuon import DropMuon
from dropmuon.backward.batches import cut
from tests.backward.parted_problem import (
    make_batch,
    make_model,
)

# Cutting batches

Pair = namedtuple("Pair", ["x", "y"])


class Encoding(UserDict):
    """As Hugging Face's BatchEncoding: a mapping that is no dict."""


def test_nested_batches_are_cut_item_by_item_and_keep_their_types() -> None:
    x, y = torch.arange(10).reshape(5, 2), torch.arange(5)
    batch = {
        "pair": Pair(x, y),
        "encoding": Encoding({"ids": x, "mask": y}),
        "names": ["a", "b", "c", "d", "e"],
        "list": [x, {"deep": y}],
        "scale": torch.tensor(2.0),
        "flag": True,
        "none": None,
    }
    pieces, sizes = cut(batch, 2)
    assert sizes == [2, 3]
    first, second = pieces
    assert type(first["pair"]) is Pair
    assert type(first["encoding"]) is Encoding
    assert first["names"] == ["a", "b"]
    assert second["names"] == ["c", "d", "e"]
    assert first["flag"] is True
    assert first["none"] is None
    assert first["scale"] is batch["scale"]
    for piece, rows in ((first, slice(0, 2)), (second, slice(2, 5))):
        assert torch.equal(piece["pair"].x, x[rows])
        assert torch.equal(piece["encoding"]["mask"], y[rows])
        assert torch.equal(piece["list"][1]["deep"], y[rows])


@given(size=st.integers(1, 40), count=st.integers(1, 12))
def test_pieces_are_nearly_equal_and_leave_nothing_out(size: int, count: int) -> None:
    x = torch.arange(size)
    if size < count:
        with pytest.raises(ValueError, match=f"got {size} for parts={count}"):
            cut((x,), count)
        return
    pieces, sizes = cut((x,), count)
    assert torch.equal(torch.cat([piece[0] for piece in pieces]), x)
    assert sizes == [len(piece[0]) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


def test_one_batch_is_given_back_as_it_came() -> None:
    optimizer = DropMuon(make_model(), parts=2)
    seen: list[Any] = []
    x, _ = make_batch(0)

    def pieces() -> Iterator[Any]:
        yield from optimizer.split({"x": x})

    for piece in pieces():
        seen.append(piece)
    assert [len(piece["x"]) for piece in seen] == [12, 12]
