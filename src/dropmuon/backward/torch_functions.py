"""What torch functions do besides computing: write, read hidden state, query shapes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from dropmuon.backward.ghosts import tensors_in

__all__ = [
    "METADATA",
    "OPAQUE",
    "PLAIN",
    "TROUBLE",
    "accumulates_statistics",
    "bound",
    "is_made_of_tensors",
    "writes",
]


def _members(*names: str) -> set[Any]:
    """Return methods of a tensor, and the getters of its properties, as torch functions."""
    found = (getattr(Tensor, name) for name in names)
    return {member if callable(member) else member.__get__ for member in found}


def _accessors(name: str) -> tuple[Any, Any]:
    """Return the getter and setter of a property of a tensor, as torch functions."""
    member = getattr(Tensor, name)
    return member.__get__, member.__set__


METADATA = _members(
    *("shape", "dtype", "device", "ndim", "requires_grad", "layout", "is_sparse", "is_cuda"),
    *("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "__len__"),
)
OPAQUE = _members(
    *("grad", "grad_fn", "is_leaf", "numpy", "data_ptr", "untyped_storage"),
    *("register_hook", "retain_grad", "backward"),
)
# Writes through these leave no trace, or start gradients where there were none.
TROUBLE = dict.fromkeys(_accessors("data"), "the closure uses the .data of a tensor")
TROUBLE |= dict.fromkeys(
    (_accessors("requires_grad")[1], Tensor.requires_grad_), "gradients start in a frozen layer"
)
# These write to running statistics without a trace in their versions.
OPAQUE |= {torch.batch_norm, torch.native_batch_norm, torch.instance_norm}
OPAQUE |= {nn.functional.instance_norm, torch.fused_moving_avg_obs_fake_quant}
_TORCH_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
PLAIN = (int, float, complex, str, bytes, type(None), type(...), *_TORCH_TYPES)
_BATCH_NORM = nn.functional.batch_norm
_BATCH_NORM_SIGNATURE = inspect.signature(_BATCH_NORM)


def bound(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments as given; those of batch norm by name, with defaults."""
    if func is not _BATCH_NORM:
        return args, kwargs
    named = _BATCH_NORM_SIGNATURE.bind(*args, **kwargs)
    named.apply_defaults()
    return (), dict(named.arguments)


def accumulates_statistics(func: Any, kwargs: Any) -> bool:
    """Return whether this is batch norm in training, which only writes running statistics."""
    return func is _BATCH_NORM and kwargs["training"] and kwargs["running_mean"] is not None


def writes(func: Any) -> bool:
    """Return whether a function writes to its first input, judging by its name."""
    name = getattr(func, "__name__", "")
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def is_made_of_tensors(output: Any) -> bool:
    """Return whether an output is made of tensors, perhaps nested, and None."""
    if isinstance(output, list | tuple):
        return bool(tensors_in(output)) and all(
            item is None or is_made_of_tensors(item) for item in output
        )
    return isinstance(output, Tensor)
