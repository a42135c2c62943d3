"""Real data: fetched once, verified whenever it is loaded, kept on the device as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from dropmuon.checks import whole_number
from dropmuon.lab.data.cache import (
    Check,
    Fetched,
    Status,
    cache_directory,
    contents,
    fetch,
    is_missing,
    status,
    verify,
)
from dropmuon.lab.data.cache import fetch as fetch_files
from dropmuon.lab.data.catalogue import NAMES, find
from dropmuon.lab.data.tensors import (
    Data,
    Examples,
    Pictures,
    augment,
    from_pictures,
    from_text,
    of_classes,
)

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


def load(
    name: str,
    *,
    cache: Path | str | None = None,
    device: torch.device | str = "cpu",
    context: int = 64,
    classes: Sequence[int] = (),
    fetch: bool = True,
    show_progress: bool = False,
) -> Data:
    """Load a data set onto a device; each of its files must have the right checksum.

    Args:
        name: one of `NAMES`.
        cache: directory of fetched files; by default `$DROPMUON_DATA`, or else the platform's
            cache directory.
        device: where the tensors live.
        context: bytes per example, for text.
        classes: of images, those to keep, relabelled 0, 1, ... in this order; all by default.
        fetch: whether to fetch missing files; if not, they are an error.
        show_progress: whether to show progress bars while fetching.
    """
    chosen = find(name)
    place = _usable(device)
    folder = cache_directory(cache)
    whole_number("context", context)
    check_classes(name, classes)
    if is_missing(chosen, folder):
        if not fetch:
            raise FileNotFoundError(
                f"{name} is not in the cache directory {folder}; run: dropmuon data fetch {name}"
            )
        fetch_files(name, folder, show_progress)
    content = chosen.read(contents(chosen, folder))
    if isinstance(content, Pictures):
        found = from_pictures(name, content, place)
        return of_classes(found, classes) if classes else found
    return from_text(name, content, context, place)


def check_classes(name: str, classes: Sequence[int]) -> None:
    """Raise ValueError if these cannot be classes of a data set, whichever it has."""
    if not classes:
        return
    if kind_of(name) == "bytes":
        raise ValueError(
            f"classes must be left out for texts, got {tuple(classes)} for {name}; only images "
            "have them"
        )
    for each in classes:
        whole_number("classes", each, least=0)
    twice = next((each for each in classes if list(classes).count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"classes must be distinct, got {twice} twice; drop one")
    if len(classes) < 2:
        raise ValueError(f"classes must be at least two, got {tuple(classes)}; add another")


def kind_of(name: str) -> Literal["images", "bytes"]:
    """Return what a data set has, without loading it."""
    return find(name).kind


def _usable(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be one that torch can use here, got {str(device)!r}: {reason}"
        ) from error
