"""What is refused, and the sentence that says so: argument, value, remedy."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, SupportsIndex

import torch
from torch import Tensor

__all__ = [
    "check_gradient",
    "check_group",
    "check_parameter",
    "no_gradient_warning",
    "unknown_name",
    "whole_number",
]

_STARTS = ("gradient", "zero")


def whole_number(
    name: str, value: object, *, least: int = 1, most: int | None = None, remedy: str = ""
) -> int:
    """Return `value` as an int from `least` to `most`, or refuse it with the argument's name."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number and (most is None or number <= most):
            return number
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    end = f"; {remedy}" if remedy else ""
    raise ValueError(f"{name} must be a whole number {wanted}, got {value!r}{end}")


def check_group(group: Mapping[str, Any]) -> None:
    """Refuse settings of a parameter group that no step can be taken with."""
    lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr as a tensor must have one element, got shape {tuple(lr.shape)}")
    if not _is_length(float(lr) if isinstance(lr, Tensor) else lr):
        raise ValueError(f"lr must be a finite number of at least 0, got {lr!r}")
    if not (isinstance(momentum, Real) and 0 <= float(momentum) < 1):
        raise ValueError(
            f"momentum must be in [0, 1), got {momentum}; it is the share of the old momentum "
            "that is kept, 1 - beta in the paper"
        )
    if not _is_length(decay):
        raise ValueError(f"weight_decay must be a finite number of at least 0, got {decay!r}")
    if group["momentum_start"] not in _STARTS:
        raise unknown_name("momentum_start", str(group["momentum_start"]), _STARTS)


def _is_length(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0


def check_parameter(name: str, parameter: Tensor) -> None:
    """Refuse parameters without a geometry."""
    if torch.is_complex(parameter):
        raise ValueError(
            f"parameter {name!r} is complex; keep it as two real tensors (torch.view_as_real)"
        )
    if not torch.is_floating_point(parameter):
        raise ValueError(f"parameter {name!r} has dtype {parameter.dtype}; only floats can move")


def check_gradient(name: str, gradient: Tensor) -> None:
    """Refuse gradients that no norm is defined for."""
    if gradient.layout != torch.strided:
        raise RuntimeError(
            f"the gradient of {name!r} is sparse, and DropMuon needs dense ones; "
            "build the embedding with sparse=False"
        )


def no_gradient_warning(layers: Sequence[str], active: Sequence[int]) -> str:
    """What to say when `step()` finds nothing to move along."""
    names = ", ".join(repr(layers[index]) for index in active[:3])
    more = ", ..." if len(active) > 3 else ""
    return (
        f"step() found no new gradient in the active layers ({names}{more}), and nothing moved; "
        "call loss.backward() before every step()"
    )


def unknown_name(argument: str, given: str, accepted: Iterable[str]) -> ValueError:
    """An error for a misspelt name, with the nearest accepted one."""
    names = sorted(accepted)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{argument} must be one of {', '.join(names)}, got {given!r}{hint}")
