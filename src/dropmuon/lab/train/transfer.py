"""Transfer: training that starts from trained weights, with a new head.

A run keeps two files for this. `weights/baseline.pt` is the trained model of its baseline on its
first seed, for others to start from. `weights/initial.pt` is what it started from itself, so that
it can be resumed whatever becomes of that source.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dropmuon.checks import kind_of
from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.models import head_of
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.equal_terms import initial_model
from dropmuon.output import write_bytes

__all__ = [
    "Weights",
    "digest_of",
    "keep_final",
    "keep_initial",
    "read_saved",
    "starting_weights",
]

Weights = dict[str, Tensor]
"""Parameters and buffers by name, as in a state dict."""

_SAME = "give weights of the same model, channels and context"

_NOT_SAVED_BY_TORCH = (
    *(AssertionError, AttributeError, EOFError, LookupError, OverflowError, RuntimeError),
    *(TypeError, ValueError, pickle.UnpicklingError, struct.error),
)
"""What reading a file raises that `torch.save` did not write, or not as it is."""


def starting_weights(
    config: Config, found: data.Data, run: RunDirectory, *, resume: bool
) -> Weights | None:
    """Return the weights that every trial starts from, the head left out; None if random.

    A resumed run has those that it began with.
    """
    if not config.init:
        return None
    if resume:
        remedy = "begin it again with another --out"
        return _read(_initial(run), f"out {run.path}", remedy)
    remedy = "give the directory of a run, or a file written by torch.save(model.state_dict())"
    given = _read(_source(config.init), f"init {config.init}", remedy)
    return _without_head(config, given, initial_model(config, found, config.seeds[0]))


def keep_initial(run: RunDirectory, weights: Weights | None) -> None:
    """Keep what a run starts from, to resume it."""
    if weights is not None:
        _write(_initial(run), weights)


def keep_final(run: RunDirectory, model: nn.Module) -> None:
    """Keep the trained model of the baseline, to start other runs from."""
    _write(_final(run), model.state_dict())


def digest_of(weights: Weights) -> str:
    """Return what tells weights apart, whatever file they are in."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_saved(path: Path) -> Any:
    """Return what `torch.save` wrote, tensors on the CPU; ValueError if the file is not of it.

    Nothing but tensors and plain containers is ever unpickled.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except _NOT_SAVED_BY_TORCH as error:
        raise ValueError(f"{path} cannot be read: {error!r}") from error


def _initial(run: RunDirectory) -> Path:
    return run.weights / "initial.pt"


def _final(run: RunDirectory) -> Path:
    return run.weights / "baseline.pt"


def _source(init: str) -> Path:
    """Return the file of weights that a path means: itself, or the one that a run keeps."""
    path = Path(init)
    if not path.exists():
        raise ValueError(
            f"init {init} does not exist; give the directory of a run, or a file of weights"
        )
    if not path.is_dir():
        return path
    if not (path / "config.json").exists():
        raise ValueError(
            f"init {init} is not a run: it has no config.json; give a directory that `dropmuon "
            "compare --out` made, or one budget of a race"
        )
    final = _final(RunDirectory(path))
    if not final.exists():
        raise ValueError(
            f"init {init} has no trained weights of its baseline; continue it with --resume, or "
            "run it again if an earlier release made it"
        )
    return final


def _without_head(config: Config, given: Weights, model: nn.Sequential) -> Weights:
    """Return what a model needs of these weights; those of another architecture are an error."""
    start = f"init {config.init}"
    head = f"{head_of(model, config.join_head)}."
    needed = {name: own for name, own in model.state_dict().items() if not name.startswith(head)}
    shown = " ".join([config.model, "-".join(map(str, config.channels))])
    for name, own in needed.items():
        if name not in given:
            raise ValueError(f"{start} has no {name!r}, which {shown} needs; {_SAME}")
        if given[name].shape != own.shape:
            raise ValueError(
                f"{start} has {name!r} of shape {tuple(given[name].shape)}, and {shown} needs "
                f"{tuple(own.shape)}; {_SAME}"
            )
        if not given[name].isfinite().all():
            raise ValueError(
                f"{start} has values in {name!r} that are not finite; give weights of training "
                "that did not diverge"
            )
    extra = next((n for n in given if n not in needed and not n.startswith(head)), None)
    if extra is not None:
        raise ValueError(f"{start} has {extra!r}, which {shown} lacks; {_SAME}")
    return {name: given[name].to(own.dtype) for name, own in needed.items()}


def _read(path: Path, what: str, remedy: str) -> Weights:
    """Read a state dict."""
    try:
        found = read_saved(path)
    except ValueError as error:
        raise ValueError(f"{what} has weights that cannot be read; {remedy}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{what} must have tensors by name, got {kind_of(found)}; {remedy}")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{what} must have tensors by name, got {kind_of(value)} as {name!r}; {remedy}"
            )
    return dict(found)


def _write(path: Path, weights: Mapping[str, Tensor]) -> None:
    content = io.BytesIO()
    torch.save(dict(weights), content)
    write_bytes(path, content.getvalue())
