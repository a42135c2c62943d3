"""The setting of the allocator, by which times are steadier: harmless wherever it is called."""

from __future__ import annotations

import sys

import torch

from dropmuon.lab.train.machine import keep_freed_memory


def test_freed_memory_is_kept_only_where_the_allocator_knows_how() -> None:
    if not sys.platform.startswith("linux"):
        assert not keep_freed_memory()


def test_tensors_live_and_die_as_before() -> None:
    keep_freed_memory()
    for size in (1, 1 << 22):
        assert float(torch.ones(size).sum()) == size
