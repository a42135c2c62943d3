"""What a checkpoint holds beside the tensors, and whether it fits before anything is loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from dropmuon.norms import AdamW, Norm

__all__ = ["KEY", "VERSION", "call_hooks", "check_fit", "no_hooks"]

KEY = "dropmuon"
VERSION = 1

_FIELDS = {
    *("version", "layers", "sampler", "seed", "resample_every", "total_steps", "full_start"),
    *("steps", "full_next", "active", "silent", "skipped"),
}


def check_fit(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    *,
    layers: Sequence[str],
    sampler: str,
    norm_of: Mapping[Tensor, Norm | AdamW],
) -> None:
    """Raise ValueError if a state is of another optimizer, model, layer count or sampler."""
    own = saved.get(KEY)
    if not isinstance(own, Mapping) or "param_groups" not in saved or "state" not in saved:
        raise ValueError("state_dict is not one of DropMuon; it has no entry 'dropmuon'")
    missing = _FIELDS - own.keys()
    if missing:
        raise ValueError(
            f"state_dict is not complete: 'dropmuon' lacks {', '.join(sorted(missing))}"
        )
    if own["version"] > VERSION:
        raise ValueError(
            f"state_dict has version {own['version']}, and this dropmuon reads up to {VERSION}; "
            "upgrade dropmuon"
        )
    if len(own["layers"]) != len(layers):
        raise ValueError(
            f"state_dict is for {len(own['layers'])} layers, but this optimizer has {len(layers)}; "
            "build it with the same model, by and example"
        )
    for index, (theirs, ours) in enumerate(zip(own["layers"], layers, strict=True)):
        if theirs != ours:
            raise ValueError(
                f"state_dict has {theirs!r} as layer {index}, but this optimizer has {ours!r}; "
                "build it with the same model, by and example"
            )
    if own["sampler"] != sampler:
        raise ValueError(
            f"state_dict was made with sampler {own['sampler']}, but this optimizer has {sampler}; "
            "build it with the same sampler"
        )
    _check_tensors(saved, groups, norm_of)


def _check_tensors(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    norm_of: Mapping[Tensor, Norm | AdamW],
) -> None:
    if len(saved["param_groups"]) != len(groups):
        raise ValueError(
            f"state_dict has {len(saved['param_groups'])} parameter groups, but this optimizer "
            f"has {len(groups)}"
        )
    for number, (theirs, ours) in enumerate(zip(saved["param_groups"], groups, strict=True)):
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                f"state_dict has {len(theirs['params'])} parameters in group {number}, but this "
                f"optimizer has {len(ours['params'])}"
            )
        for index, parameter in zip(theirs["params"], ours["params"], strict=True):
            state = saved["state"].get(index, {})
            _check_state(number, state, parameter, norm_of[parameter])


def _check_state(
    number: int, state: Mapping[str, Any], parameter: Tensor, norm: Norm | AdamW
) -> None:
    expected = "exp_avg" if isinstance(norm, AdamW) else "momentum_buffer"
    if state and expected not in state:
        raise ValueError(
            f"state_dict has no {expected} in group {number}, and {norm} needs one; "
            "build the optimizer with the same policy"
        )
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
            raise ValueError(
                f"state_dict has {name} of shape {tuple(value.shape)} in group {number} for a "
                f"parameter of shape {tuple(parameter.shape)}; it is the state of another model"
            )


@contextmanager
def no_hooks(optimizer: Optimizer, name: str) -> Iterator[dict[int, Any]]:
    """Take the hooks away from the base class, for the caller to call when all is there."""
    hooks = getattr(optimizer, name)
    setattr(optimizer, name, OrderedDict())
    try:
        yield hooks
    finally:
        setattr(optimizer, name, hooks)


def call_hooks(
    hooks: dict[int, Any], optimizer: Optimizer, state: dict[str, Any]
) -> dict[str, Any]:
    """Call hooks one after the other; each may change the state, or answer with another."""
    for hook in hooks.values():
        answer = hook(optimizer, state)
        state = state if answer is None else answer
    return state
