"""Real data: fetched once, verified whenever it is loaded, kept on the device as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropmuon.checks import on_demand
from dropmuon.lab.data.cache import (
    Check,
    Fetched,
    Status,
    cache_directory,
    fetch,
    status,
    verify,
)
from dropmuon.lab.data.catalogue import NAMES, check_classes, kind_of

if TYPE_CHECKING:
    from dropmuon.lab.data.tensors import Data, Examples, augment, load

__all__ = [
    "NAMES",
    "Check",
    "Data",
    "Examples",
    "Fetched",
    "Status",
    "augment",
    "cache_directory",
    "check_classes",
    "fetch",
    "kind_of",
    "load",
    "status",
    "verify",
]

__getattr__ = on_demand(
    __name__,
    {name: f"{__name__}.tensors:{name}" for name in ("Data", "Examples", "augment", "load")},
)
"""Cached files can be listed, fetched and verified without torch."""
