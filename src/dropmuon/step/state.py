"""Settings and saved states, checked before they change anything."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from dropmuon.checks import nonnegative_number, unknown_name, whole_number
from dropmuon.model.roster import Member, Roster
from dropmuon.model.routing import LOOKUPS, RATIO
from dropmuon.norms import AdamW
from dropmuon.norms.numerics import accumulation_dtype
from dropmuon.samplers import Sampler
from dropmuon.shards import is_sharded, placed

__all__ = ["KEY", "SavedOptimizer", "check_group"]

KEY = "dropmuon"
"""Our entry in a saved state; in groups it is empty, except in the first of a saved state."""

VERSION = 5

_FIELDS = {
    *("version", "layers", "sampler", "seed", "resample_every", "total_steps", "full_start"),
    *("steps", "full_step", "turns", "parts", "active", "adaptation", "has_gradient", "skipped"),
    *("moving", "moves"),
}
_STARTS = ("gradient", "zero")
_DAMAGED = "the state is damaged or was edited: load another"
_OBJECTS = {"norm", "step_rule"}
_MOMENTS = {"exp_avg", "exp_avg_sq"}
_OF_MODEL = {"name", LOOKUPS, KEY}
"""Settings of a group that come from the model, and not from a state."""


class SavedOptimizer(Optimizer):
    """A torch optimizer whose saved state has an entry of its own next to torch's.

    Norms and step rules are saved as text, since `torch.load(weights_only=True)` reads no classes;
    the groups of the optimizer that loads a state keep theirs. `torch.distributed.checkpoint` drops
    all entries but torch's own, so the first group has ours too, as one text: its keys may change
    from step to step, and a checkpoint is read into the keys that are there.
    """

    roster: Roster

    @property
    def sampler(self) -> Sampler:
        """The distribution that active sets are drawn from."""
        raise NotImplementedError

    @property
    def parts(self) -> int:
        """The number of parts that the batch of a step is cut into."""
        raise NotImplementedError

    def _reread(self) -> None:
        """Follow the groups, if someone has replaced them."""
        raise NotImplementedError

    def _own_state(self) -> dict[str, Any]:
        """Return what the entry holds: plain numbers, texts and lists."""
        raise NotImplementedError

    def _load_own_state(self, own: Mapping[str, Any]) -> None:
        """Continue from such an entry, which has been checked."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, readable by `torch.load(weights_only=True)`."""
        with _no_hooks(self, "_optimizer_state_dict_post_hooks") as hooks:
            state = super().state_dict()
        for group in state["param_groups"]:
            for key in _OBJECTS & group.keys():
                group[key] = None if group[key] is None else repr(group[key])
            if LOOKUPS in group:
                group[LOOKUPS] = None
            if "layer" in group:
                group["layer"] = str(group["layer"])
        names, sampler = list(self.roster.names), repr(self.sampler)
        head = {"version": VERSION, "layers": names, "sampler": sampler}
        own = {**head, **self._own_state()}
        state["param_groups"][0][KEY] = json.dumps(own)
        return _call(hooks, self, {**state, KEY: own})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a state was saved. A state that does not fit changes nothing."""
        with (
            _no_hooks(self, "_optimizer_load_state_dict_pre_hooks") as before,
            _no_hooks(self, "_optimizer_load_state_dict_post_hooks") as after,
        ):
            self._load(_upgraded(_call(before, self, dict(state_dict))))
        for hook in after.values():
            hook(self)

    def _load(self, saved: dict[str, Any]) -> None:
        self._reread()
        _check_fit(saved, self.param_groups, self.roster, repr(self.sampler), self.parts)
        defaults = dict(self.defaults)
        for group in saved["param_groups"]:
            check_group({**defaults, **group})
        kept = [{key: g.get(key) for key in {*_OBJECTS, "layer"}} for g in self.param_groups]
        more = [{key: g[key] for key in _OF_MODEL & g.keys()} for g in self.param_groups]
        super().load_state_dict({key: value for key, value in saved.items() if key != KEY})
        for group, mine, own in zip(self.param_groups, kept, more, strict=True):
            group.update({key: value for key, value in mine.items() if key in group} | own)
            for key, value in defaults.items():
                group.setdefault(key, value)
        self._widen(saved)
        for parameter, state in self.state.items():
            if "step" in state:
                state["step"] = state["step"].to(parameter.device)
            if is_sharded(parameter):
                _spread(state, parameter)
        self._load_own_state(saved[KEY])

    def _widen(self, saved: Mapping[str, Any]) -> None:
        """Restore AdamW's moments as they were saved: torch gives them the parameter's dtype."""
        for theirs, ours in zip(saved["param_groups"], self.param_groups, strict=True):
            for index, parameter in zip(theirs["params"], ours["params"], strict=True):
                state, wide = self.state.get(parameter, {}), accumulation_dtype(parameter)
                for name in _MOMENTS & state.keys():
                    if state[name].dtype != wide:
                        moment = saved["state"][index][name]
                        state[name] = moment.to(parameter.device, wide, copy=True)


def check_group(group: Mapping[str, Any]) -> None:
    """Raise ValueError for settings of a parameter group with which no step can be taken."""
    lr, momentum = group["lr"], group["momentum"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr as a tensor must have one element, got shape {tuple(lr.shape)}")
        lr = float(lr)
    nonnegative_number("lr", lr)
    nonnegative_number(RATIO, group.get(RATIO, 1.0))
    nonnegative_number("weight_decay", group["weight_decay"])
    if not (isinstance(momentum, Real) and 0 <= float(momentum) < 1):
        raise ValueError(
            f"momentum must be in [0, 1), got {momentum!r}; it is the share of the old momentum "
            "that is kept, 1 - beta in the paper"
        )
    if group["momentum_start"] not in _STARTS:
        raise unknown_name("momentum_start", str(group["momentum_start"]), _STARTS)


def _upgraded(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state in this version's form."""
    own = saved.get(KEY, _in_groups(saved))
    if not isinstance(own, Mapping):
        return dict(saved)
    own = dict(own)
    if own.get("version") == 1 and own.keys() >= {"full_next", "silent", *_IN_ALL_VERSIONS}:
        full_next, silent = own.pop("full_next"), own.pop("silent")
        own["full_step"] = own["steps"] if full_next else 0 if own["full_start"] else None
        own["has_gradient"] = [None if full_next else name not in silent for name in own["layers"]]
        own |= {"version": 2, "parts": 1, "active": [own["active"]]}
    if own.get("version") == 2:
        own |= {"version": 3, "turns": 1, "adaptation": None}
    if own.get("version") == 3:
        own |= {"version": 4, "moving": None}
    if own.get("version") == 4:
        own |= {"version": VERSION, "moves": {}}
    return {**saved, KEY: own}


def _in_groups(saved: Mapping[str, Any]) -> Any:
    """Return our entry as `torch.distributed.checkpoint` carries it, in a group."""
    texts = [group.get(KEY) for group in saved.get("param_groups", ())]
    return next((json.loads(text) for text in texts if text), None)


def _spread(state: dict[str, Any], parameter: Tensor) -> None:
    """Shard what was saved as a whole, as its parameter is sharded."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and not is_sharded(value):
            state[name] = placed(value, parameter)


_IN_ALL_VERSIONS = _FIELDS - {
    *("full_step", "turns", "parts", "adaptation", "has_gradient", "moving", "moves")
}


def _check_fit(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    roster: Roster,
    sampler: str,
    parts: int,
) -> None:
    """Raise ValueError if a state is from another optimizer, model, layer count or sampler."""
    layers = roster.names
    own = saved.get(KEY)
    if not isinstance(own, Mapping) or "param_groups" not in saved or "state" not in saved:
        raise ValueError("state_dict is not from DropMuon: it has no entry 'dropmuon'")
    if own.get("version", VERSION) > VERSION:
        raise ValueError(
            f"state_dict has version {own['version']}, but this dropmuon reads up to {VERSION}; "
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
            "build it with the same model, by, example and tied"
        )
    for index, (theirs, ours) in enumerate(zip(own["layers"], layers, strict=True)):
        if theirs != ours:
            raise ValueError(
                f"state_dict has {theirs!r} as layer {index}, but this optimizer has {ours!r}; "
                "build it with the same model, by, example and tied"
            )
    if own["parts"] != parts:
        raise ValueError(
            f"state_dict was made with parts={own['parts']}, but this optimizer has parts={parts}; "
            "build it with the same parts"
        )
    if own["sampler"] != sampler:
        raise ValueError(
            f"state_dict was made with sampler {own['sampler']}, but this optimizer has {sampler}; "
            "build it with the same sampler"
        )
    _check_values(own, len(layers))
    _check_tensors(saved, groups, roster)


_LEAST = {"steps": 0, "seed": 0, "resample_every": 1, "turns": 1, "total_steps": 1, "full_step": 0}
_OPTIONAL = {"total_steps", "full_step"}
_NONE_SAVED = (0.0, 0.0, 0)


def _check_values(own: Mapping[str, Any], num_layers: int) -> None:
    """Raise ValueError for values that no run could have saved, and none can go on from."""
    for name, least in _LEAST.items():
        if own[name] is not None or name not in _OPTIONAL:
            whole_number(f"state_dict: {name}", own[name], least=least, remedy=_DAMAGED)
    sets, moving, known = own["active"], own["moving"], own["has_gradient"]
    right = (
        own["full_start"] in (True, False, "momentum")
        and isinstance(sets, list)
        and len(sets) == own["parts"]
        and all(map(partial(_is_set, num_layers=num_layers), sets))
        and (moving is None or _is_set(moving, num_layers))
        and isinstance(known, list)
        and len(known) == num_layers
        and all(isinstance(own[name], Mapping) for name in ("moves", "skipped"))
        and _is_saved(own.get("saved", _NONE_SAVED))
        and (own["adaptation"] is None or isinstance(own["adaptation"], Mapping))
    )
    if not right:
        raise ValueError(f"state_dict: the active sets, or what was counted, are wrong; {_DAMAGED}")


def _is_saved(shares: object) -> bool:
    """Return whether this is the last share of saved operations, their sum, and the steps."""
    return (
        isinstance(shares, list | tuple)
        and len(shares) == len(_NONE_SAVED)
        and all(isinstance(each, Real) and math.isfinite(each) for each in shares)
    )


def _is_set(layers: object, num_layers: int) -> bool:
    """Return whether this is a list of layers, not empty."""
    return (
        isinstance(layers, list | tuple)
        and len(layers) > 0
        and all(type(layer) is int and 0 <= layer < num_layers for layer in layers)
    )


def _check_tensors(
    saved: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    roster: Roster,
) -> None:
    members = {member.parameter: member for member in roster.members()}
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
            member, found = members[parameter], saved["state"].get(index, {})
            _check_state(found, member)
            has_moved = saved[KEY]["moves"].get(roster.names[member.layer], 0) > 0
            if has_moved and not found and member.is_wanted and not parameter.requires_grad:
                raise ValueError(
                    f"state_dict lacks {member.name!r}, which is frozen for this step: "
                    "torch.distributed.checkpoint leaves out what is frozen; call set_state_dict "
                    "inside 'with optimizer.full():'"
                )


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
def _no_hooks(optimizer: Optimizer, name: str) -> Iterator[dict[int, Any]]:
    """Remove hooks from torch's own methods, to call them once the state is complete."""
    hooks = getattr(optimizer, name)
    setattr(optimizer, name, OrderedDict())
    try:
        yield hooks
    finally:
        setattr(optimizer, name, hooks)


def _call(hooks: dict[int, Any], optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Call hooks one after the other; each may change the state, or return another."""
    for hook in hooks.values():
        other = hook(optimizer, state)
        state = state if other is None else other
    return state
