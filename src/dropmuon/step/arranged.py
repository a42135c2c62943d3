"""Parameters that come, go, are replaced, saved and loaded: all of an optimizer but its step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from dropmuon import samplers
from dropmuon.backward.flags import Flags
from dropmuon.backward.parts import Parts, call_if_alive
from dropmuon.backward.settled import call_when_settled, can_truncate, check_ddp
from dropmuon.backward.strays import StrayGradients, order_matters
from dropmuon.model.engines import listed, refuse_flat, replacements
from dropmuon.model.groups import find_in_model, read_groups
from dropmuon.model.layers import Structure
from dropmuon.model.roster import Member, Roster
from dropmuon.model.routing import LOOKUPS, Routing
from dropmuon.model.work import Work
from dropmuon.samplers.base import ActiveSet
from dropmuon.shards import any_sharded
from dropmuon.step.adaptation import Adaptation
from dropmuon.step.advice import Advice
from dropmuon.step.moves import new_state
from dropmuon.step.overview import Overview
from dropmuon.step.rules import StepRule, momentum_or_default, or_default
from dropmuon.step.state import SavedOptimizer, check_group
from dropmuon.step.turns import assign_turns, check_turns

__all__ = ["ArrangedOptimizer"]

_COPIED = {
    *("draws", "step_rule", "updates_per_batch", "truncate", "error_if_nonfinite", "roster"),
    *("_routing", "_obstacle", "_flags", "_full_depth", "_released", "_lookups", "_strays"),
    *("_steps", "_parts", "_moving", "_has_gradient", "_tally", "_adaptation", "_advice"),
    *("_listed", "_work"),
}
"""Attributes that a copy or a pickle keeps, besides those of every optimizer."""

_DRAWS = ("seed", "resample_every", "total_steps", "full_start", "full_step", "turns")
"""Settings of the draws that a saved state restores."""


class ArrangedOptimizer(Overview, SavedOptimizer):
    """An optimizer whose layers follow its groups, and whose place in training can be saved.

    Torch lets users and engines change an optimizer at any time: groups are added, parameters are
    replaced by shards, states are loaded, copies are made. What is arranged here holds again after
    each of these; the subclass has the step.
    """

    step_rule: StepRule
    updates_per_batch: int
    truncate: bool | Literal["refresh"]
    _routing: Routing
    _parts: Parts
    _flags: Flags
    _strays: StrayGradients
    _advice: Advice
    _moving: ActiveSet | None
    _has_gradient: dict[int, bool]
    _listed: list[Tensor]
    _finalizer: weakref.finalize[..., Any] | None

    _structure: Structure | None = None  # copies have none
    _work = Work(Roster((), ()))
    _released = False
    _model: weakref.ref[nn.Module] | None = None
    _has_begun = False
    _waits = False
    _waiting: weakref.finalize[..., Any] | None = None

    def _draw(self) -> None:
        """Draw the active sets of the next step."""
        raise NotImplementedError

    def _freeze(self) -> None:
        """Apply the active set of the next part."""
        raise NotImplementedError

    def _end_part(self) -> None:
        """Go to the next part."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters: to an existing layer, or as new layers. The next step is full.

        Parameters of the model that the optimizer was made for get the layers, norms and names that
        they would have had from the start; new layers of other parameters come last.
        """
        pieces, count = [param_group], len(self.param_groups)
        if len(self.roster) and self._structure is not None and isinstance(param_group, dict):
            pieces = find_in_model(pieces, self._structure, self._routing, self.param_groups)
        members = {member.parameter: member for member in self.roster.members()}
        try:
            for piece in pieces:
                self._complete(piece)
                super().add_param_group(piece)
            if len(self.roster):
                self._arrange({**self._known, **members})
        except BaseException:
            del self.param_groups[count:]
            if len(self.roster):
                self.roster = self._read(members)
            raise

    def _complete(self, group: dict[str, Any]) -> None:
        """Resolve and check the settings of a group."""
        self._routing.complete(group)
        if group.get("step_rule") is not None:
            rule = or_default(group["step_rule"])
            check_turns(self.draws.turns, rule)
            given = group.get("momentum")
            group["momentum"] = momentum_or_default(given, rule, self.defaults["momentum"])
        check_group({**self.defaults, **group})

    @property
    def _known(self) -> dict[Tensor, Member]:
        """Records of all parameters of the model, where it is known."""
        return {} if self._structure is None else self._structure.records

    def _read(self, members: dict[Tensor, Member]) -> Roster:
        return read_groups(self.param_groups, members, self._routing, self._structure)

    def _arrange(self, members: dict[Tensor, Member]) -> None:
        """Read the layers off the groups; the next step moves all of them."""
        roster = self._read(members)
        self.sampler.check(len(roster))
        for rule in (self.step_rule, *(group.get("step_rule") for group in self.param_groups)):
            if rule is not None:
                rule.check(len(roster))
        refuse_flat(None if self._model is None else self._model(), roster.members())
        self.roster, self._listed = roster, listed(self.param_groups)
        assign_turns(list(roster.members()), self.draws.turns, self.draws.seed)
        self._advice.expect_rates(self.param_groups)
        self._flags = Flags([[(m.parameter, m.owner) for m in layer] for layer in roster.layers])
        self._has_gradient = {}
        if self._steps > 0:
            self.draws.make_full(self._steps)
        self._work.close()
        self._work = Work(roster, None if self._model is None else self._model())
        self._adapt()
        self._strays.close()
        if self.truncate is True and not isinstance(self.sampler, samplers.Full):
            ordered = order_matters(self.sampler, len(roster))
            self._strays = StrayGradients(roster.modules(), ordered=ordered)
        self._watch()
        self._draw()
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = self._flags.release_with(self)

    def _adapt(self) -> None:
        """Start to measure anew, if the sampler is adaptive."""
        if not isinstance(self.sampler, samplers.Adaptive):
            return
        if any_sharded(member.parameter for member in self.roster.members()):
            raise ValueError(
                "sampler='adaptive' measures gradients where they arrive, which for sharded "
                "parameters is on other ranks too; give samplers.Shares, or another sampler"
            )
        count = len(self.roster)
        self._adaptation = Adaptation(self.sampler, count, self.parts, self._steps, self._work)

    def _count_saved(self, moved: ActiveSet) -> None:
        """Count what a step with these layers has saved; the first one has shown what all cost."""
        if self._work.has_seen:
            self._work.close()
        sets = (self._parts.passed or (moved,)) if self.truncate is True else (self._all,)
        turn, moving = self.draws.turn_at(self._steps), self._moving or moved
        self._tally.count_saved(self._work.saved(sets, moving, turn, self.updates_per_batch))

    def _watch(self) -> None:
        """Put gates on look-ups; detect the ends of backwards, where a step has several parts."""
        if self._released:
            return
        self._lookups.arrange(
            (each for group in self.param_groups for each in group.get(LOOKUPS, ())),
            {m.parameter: m.layer for m in self.roster.members() if m.is_wanted},
        )
        model = None if self._model is None else self._model()
        if not self._has_begun and self._steps == 0:
            settle = weakref.WeakMethod(self._settle)
            self._unwait()
            calls = call_when_settled(model, partial(call_if_alive, settle))
            self._waits, handle = calls
            if handle is not None:
                self._waiting = weakref.finalize(self, handle.remove)
        if self.parts > 1:
            end = weakref.WeakMethod(self._end_part)
            members = [(member.parameter, member.layer) for member in self.roster.members()]
            places = [(m.parameter, *m.owner) for m in self.roster.members() if m.owner is not None]
            if model is None and any_sharded(member.parameter for member in self.roster.members()):
                raise ValueError(
                    f"parts={self.parts} needs the model where parameters are sharded: their "
                    "gradients arrive elsewhere in it; give DropMuon(model, ...), or model=model"
                )
            self._parts.watch(members, lambda: call_if_alive(end), model, places)

    def _unwait(self) -> None:
        """Let forwards be: nobody has to tell when flags may be applied."""
        if self._waiting is not None:
            self._waiting()
            self._waiting = None

    def _settle(self, around: nn.parallel.DistributedDataParallel | None) -> None:
        """Freeze from now on: an engine has seen what is to be trained."""
        if self._released:
            return
        self._waits, before = False, self.truncate
        if around is not None:
            self._suit([around])
        if self.truncate != before and self.parts > 1:
            self._moving = self._parts.planned
            self._parts.replace((self._all,) * self.parts)
        self._freeze()

    def _suit(self, engines: list[nn.parallel.DistributedDataParallel]) -> None:
        """Compute all gradients where DDP waits for them."""
        check_ddp(engines, self.parts)
        self._ddp = weakref.WeakSet(engines)
        if self.truncate is True and not isinstance(self.sampler, samplers.Full):
            self.truncate = can_truncate(engines)

    def _discard_inactive(self) -> None:
        """Leave a first part without gradients of inactive layers, which nobody froze in it."""
        self._waits = False
        for layer in {*self._all} - {*self.active}:
            self._parts.meter = None  # it has measured them
            for member in self.roster.layers[layer]:
                member.parameter.grad = None

    def _follow_replaced(self) -> None:
        """Go on with parameters that an engine has put in the place of those given here."""
        members = {member.parameter: member for member in self.roster.members()}
        found = replacements(self._listed, self.param_groups, members)
        waited = self._waits
        self._has_begun, self._waits = True, False
        if not found:
            if waited:
                self._freeze()  # a closure is still to come
            return
        if any(self.state.get(old) for old in found):
            raise RuntimeError(
                f"{len(found)} parameters were replaced after their first step, as fully_shard and "
                "parallelize_module do; save state_dict(), make DropMuon anew, and load it"
            )
        for group in self.param_groups:
            group["params"] = [found.get(each, each) for each in group["params"]]
            for lookup in group.get(LOOKUPS, ()):
                lookup.follow(found)
        if self._structure is not None:
            self._structure.follow(found)
        for old, new in found.items():
            members[old].parameter = new
        self._arrange({**self._known, **{each.parameter: each for each in members.values()}})

    def _rehearse(self) -> None:
        """Make all states, and take no step: `torch.distributed.checkpoint` only wants to see them.

        It leaves out what is frozen, so nothing is until the next step.
        """
        self._start(member for member in self.roster.members() if member.is_wanted)
        self._flags.apply(self._all)

    def _reread(self) -> None:
        """Follow the groups, which frameworks replace when they resume a run with added layers."""
        own = {member.parameter: member for member in self.roster.members()}
        present = listed(self.param_groups)
        if {*present} == own.keys():
            return
        if len(present) == len(self._listed):
            self._follow_replaced()
        else:
            self._arrange({**self._known, **own})

    def _own_state(self) -> dict[str, Any]:
        """Return what the next draw depends on; see `SavedOptimizer`."""
        return {
            **{name: getattr(self.draws, name) for name in _DRAWS},
            "steps": self._steps,
            "parts": self.parts,
            "active": [list(each) for each in self._parts.sets],
            "moving": None if self._moving is None else list(self._moving),
            "adaptation": None if self._adaptation is None else self._adaptation.state(),
            "has_gradient": [self._has_gradient.get(layer) for layer in self._all],
            **self._tally.state(self.layers),
        }

    def _load_own_state(self, own: Mapping[str, Any]) -> None:
        """Continue from a saved place in the sequence of draws."""
        for name in _DRAWS:
            setattr(self.draws, name, own[name])
        assign_turns(list(self.roster.members()), self.draws.turns, self.draws.seed)
        self._steps = own["steps"]
        measured = False
        if self._adaptation is not None:
            self._adaptation.load(own["adaptation"])
            measured = self._adaptation.measures_at(self._steps)
        self._parts.begin([tuple(each) for each in own["active"]], measured=measured)
        self._moving = None if own["moving"] is None else tuple(own["moving"])
        found = enumerate(own["has_gradient"])
        self._has_gradient = {layer: known for layer, known in found if known is not None}
        self._tally.load(own)
        self._freeze()

    def __getstate__(self) -> dict[str, Any]:
        own = {key: value for key, value in self.__dict__.items() if key in _COPIED}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_flags" in state:
            self._finalizer = self._flags.release_with(self)
            self._watch()

    def _start(self, members: Iterable[Member]) -> None:
        for member in members:
            if not self.state[member.parameter]:
                self.state[member.parameter].update(new_state(member))

    @property
    def _all(self) -> ActiveSet:
        return tuple(range(len(self.layers)))
