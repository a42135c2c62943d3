"""Load a data set by name, fetching it if need be."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from dropmuon.checks import whole_number
from dropmuon.lab.data.cache import cache_directory, contents, embedded, missing
from dropmuon.lab.data.catalogue import find
from dropmuon.lab.data.examples import Data
from dropmuon.lab.data.fetching import fetch as fetch_files
from dropmuon.lab.data.reading import Pictures, cifar, idx, mini
from dropmuon.lab.data.tensors import images, text

__all__ = ["load"]

_READERS: dict[str, Callable[[Mapping[str, bytes]], Pictures]] = {
    "mnist": idx,
    "fashion-mnist": idx,
    "cifar10": cifar,
    "fashion-mini": lambda _: mini(embedded()),
    "digits": lambda _: importlib.import_module("dropmuon.lab.data.digits").digits(),
}


def load(
    name: str,
    *,
    cache: Path | str | None = None,
    device: torch.device | str = "cpu",
    context: int = 64,
    fetch: bool = True,
    show_progress: bool = False,
) -> Data:
    """Load a data set onto a device; every file is compared with its checksum before.

    Args:
        name: one of `NAMES`.
        cache: directory of fetched files; `$DROPMUON_DATA` or the platform's, if not given.
        device: where the tensors live.
        context: bytes per example, for text.
        fetch: whether to fetch what is missing; else it is an error.
        show_progress: whether fetching shows bars.
    """
    chosen = find(name)
    place = _usable(device)
    folder = cache_directory(cache)
    whole_number("context", context)
    if missing(chosen, folder):
        if not fetch:
            raise FileNotFoundError(
                f"{name} is not in the cache directory {folder}; run: dropmuon data fetch {name}"
            )
        fetch_files(name, folder, show_progress)
    files = contents(name, folder)
    if name == "shakespeare":
        return text(name, files["input.txt"], context, place)
    return images(name, _READERS[name](files), place)


def _usable(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be one that torch can use here, got {str(device)!r}: {reason}"
        ) from error
