"""Settings and saved states: whether they fit, before anything is changed by them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from dropmuon.checks import nonnegative_number, unknown_name
from dropmuon.model.roster import Member, Roster
from dropmuon.norms import AdamW

__all__ = ["KEY", "VERSION", "call_hooks", "check_fit", "check_group", "no_hooks", "upgraded"]

KEY = "dropmuon"
VERSION = 2

_FIELDS = {
    *("version", "layers", "sampler", "seed", "resample_every", "total_steps", "full_start"),
    *("steps", "full_step", "active", "reached", "skipped"),
}
_STARTS = ("gradient", "zero")


def check_group(group: Mapping[str, Any]) -> None:
    """Raise ValueError for settings of a parameter group that no step can be taken with."""
    lr, momentum = group["lr"], group["momentum"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr as a tensor must have one element, got shape {tuple(lr.shape)}")
        lr = float(lr)
    nonnegative_number("lr", lr)
    nonnegative_number("weight_decay", group["weight_decay"])
    if not (isinstance(momentum, Real) and 0 <= float(momentum) < 1):
        raise ValueError(
            f"momentum must be in [0, 1), got {momentum}; it is the share of the old momentum "
            "that is kept, 1 - beta in the paper"
        )
    if group["momentum_start"] not in _STARTS:
        raise unknown_name("momentum_start", str(group["momentum_start"]), _STARTS)


def upgraded(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as this version has it: version 1 had other fields for the full step."""
    own = saved.get(KEY)
    if not isinstance(own, Mapping) or own.get("version") != 1 or not own.keys() >= _VERSION_1:
        return dict(saved)
    own = dict(own)
    full_next, silent = own.pop("full_next"), own.pop("silent")
    own["full_step"] = own["steps"] if full_next else 0 if own["full_start"] else None
    reached = [i for i, name in enumerate(own["layers"]) if name not in silent]
    own["reached"] = None if full_next else reached
    return {**saved, KEY: {**own, "version": VERSION}}


_VERSION_1 = _FIELDS - {"full_step", "reached"} | {"full_next", "silent"}


def check_fit(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    roster: Roster,
    sampler: str,
) -> None:
    """Raise ValueError if a state is of another optimizer, model, layer count or sampler."""
    layers = roster.names
    own = saved.get(KEY)
    if not isinstance(own, Mapping) or "param_groups" not in saved or "state" not in saved:
        raise ValueError("state_dict is not one of DropMuon; it has no entry 'dropmuon'")
    if own.get("version", VERSION) > VERSION:
        raise ValueError(
            f"state_dict has version {own['version']}, and this dropmuon reads up to {VERSION}; "
            "upgrade dropmuon"
        )
    missing = _FIELDS - own.keys()
    if missing:
        raise ValueError(
            f"state_dict is not complete: 'dropmuon' lacks {', '.join(sorted(missing))}"
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
    _check_tensors(saved, groups, {m.parameter: m for m in roster.members()})


def _check_tensors(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    members: Mapping[Tensor, Member],
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
            _check_state(saved["state"].get(index, {}), members[parameter])


def _check_state(state: Mapping[str, Any], member: Member) -> None:
    expected = "exp_avg" if isinstance(member.norm, AdamW) else "momentum_buffer"
    if state and expected not in state:
        raise ValueError(
            f"state_dict has no {expected} in group {member.group}, and {member.norm} needs one; "
            "build the optimizer with the same policy"
        )
    shape = tuple(member.parameter.shape)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and value.shape != shape:
            raise ValueError(
                f"state_dict has {name} of shape {tuple(value.shape)} in group {member.group} for "
                f"a parameter of shape {shape}; it is the state of another model"
            )


@contextmanager
def no_hooks(optimizer: Optimizer, name: str) -> Iterator[dict[int, Any]]:
    """Take the hooks away from the base class; the caller calls them when the state is complete."""
    hooks = getattr(optimizer, name)
    setattr(optimizer, name, OrderedDict())
    try:
        yield hooks
    finally:
        setattr(optimizer, name, hooks)


def call_hooks(
    hooks: dict[int, Any], optimizer: Optimizer, state: dict[str, Any]
) -> dict[str, Any]:
    """Call hooks one after the other; each may change the state, or return another."""
    for hook in hooks.values():
        other = hook(optimizer, state)
        state = state if other is None else other
    return state
