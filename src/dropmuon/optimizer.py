"""The step: Algorithm 1 (Drop-Muon) around `torch.optim.Optimizer`, and little else."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dropmuon import norms, samplers
from dropmuon.arguments import (
    as_groups,
    can_truncate,
    check_settings,
    momentum_or_default,
    step_rule_or_default,
)
from dropmuon.backward.flags import Freezer
from dropmuon.backward.marks import Owner, owners
from dropmuon.backward.replay import Replay, obstacle
from dropmuon.checks import check_gradient, check_group, no_gradient_warning
from dropmuon.followed import Followed
from dropmuon.model.layers import By, layer_groups
from dropmuon.model.policies import Policy
from dropmuon.model.roster import Roster
from dropmuon.samplers import ActiveSet
from dropmuon.step import state as checkpoint
from dropmuon.step.draws import Draws
from dropmuon.step.moves import Move, new_state, screen, take_step
from dropmuon.step.rules import StepRule

__all__ = ["DropMuon"]

_PATIENCE = 3
"""Steps without a gradient in the active layers after which others may move too."""

_OWN = {
    *("draws", "step_rule", "updates_per_batch", "truncate", "error_if_nonfinite"),
    *("_policy", "_orthogonalize", "_adamw_lr", "_obstacle", "_roster", "_freezer", "_warned"),
    *("_steps", "_active", "_full_next", "_full_depth", "_idle", "_silent", "_skipped"),
}
"""Attributes that a copy or a pickle takes along, beside those of every optimizer."""


class DropMuon(Optimizer):
    r"""Drop-Muon: move a random set of layers per step, and let backward stop at the lowest.

    .. math::
        M_i &= \mu M_i + (1-\mu)\,\nabla_i f(X;\xi) \\
        X_i &= X_i + \mathrm{lmo}_{\|\cdot\|_{(i)} \le t_i}(M_i)
        \qquad\text{for } i \in S^k, \quad S^k \sim \mathcal D

    Layers outside the active set :math:`S^k` keep parameters and momentum to the bit. `step()`
    moves :math:`S^k`, then draws :math:`S^{k+1}` and freezes the rest for the next backward. The
    draw is a function of `(seed, step)`, so all ranks agree without talking. The first step moves
    every layer and starts its momentum at its own gradient, as the theorems assume.

    Args:
        params: a model; or `(name, parameter)` pairs; or group dicts, which may carry `layer`,
            `norm` and any setting that holds per group (see `layer_groups`); or tensors.
        lr: the radius :math:`t_i`, or a factor on it (see `step_rule`).
        momentum: the share :math:`\mu` of the old momentum that is kept (the paper's beta is
            1-mu); 0.5 unless the step rule asks for another.
        nesterov: descend along (1-mu)*G + mu*M instead of M.
        weight_decay: decoupled, as a factor of lr; active layers only.
        sampler: a `samplers.Sampler` or a name: full, uniform, linear, quadratic, exponential,
            epoch-shift.
        total_steps: planned number of `step()` calls; gives samplers their progress.
        resample_every: keep an active set for so many steps.
        updates_per_batch: updates per `step(closure)`, all on one batch and one active set; what
            the frozen layers compute is computed once.
        truncate: False computes all gradients and skips only the updates of inactive layers.
        policy: norm per parameter: spectral (the paper's), muon, scion, euclidean, sign, or a
            callable of a `policies.Site`.
        orthogonalize: newton-schulz, svd, cubic, polar-express, coefficients, or a callable.
        seed: of the draws.
        by, example: how a model is cut into layers, and an input to order them by execution.
        step_rule: a `rules.StepRule`; by default a step has length lr in its layer's norm.
        adamw_lr: learning rate of the parameters that policy "muon" gives to AdamW.
        full_start: False samples the first step too (Algorithms 2 and 3).
        momentum_start: "gradient", or "zero" as `torch.optim.Muon` has it.
        maximize: ascend.
        foreach: False moves parameters one by one (slower; for debugging).
        error_if_nonfinite: raise on a NaN or infinite gradient instead of skipping its layer.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float | Tensor = 0.1,
        momentum: float | None = None,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        sampler: str | samplers.Sampler = "uniform",
        total_steps: int | None = None,
        resample_every: int = 1,
        updates_per_batch: int = 1,
        truncate: bool = True,
        policy: str | Policy = "spectral",
        orthogonalize: Any = "newton-schulz",
        seed: int = 0,
        *,
        by: By = "module",
        example: Any = None,
        step_rule: StepRule | None = None,
        adamw_lr: float = 3e-4,
        full_start: bool = True,
        momentum_start: str = "gradient",
        maximize: bool = False,
        foreach: bool = True,
        error_if_nonfinite: bool = False,
    ) -> None:
        self.draws = Draws(samplers.by_name(sampler), seed, resample_every, total_steps, full_start)
        self.step_rule = step_rule_or_default(step_rule)
        self.updates_per_batch = updates_per_batch
        self.truncate = truncate
        self.error_if_nonfinite = error_if_nonfinite
        defaults = {
            "lr": lr,
            "momentum": momentum_or_default(momentum, self.step_rule),
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "momentum_start": momentum_start,
            "foreach": foreach,
            "norm": None,
        }
        check_settings(self.draws, updates_per_batch)
        check_group(defaults)
        self._policy, self._orthogonalize, self._adamw_lr = policy, orthogonalize, adamw_lr
        self._steps = 0
        self._full_next = full_start
        self._full_depth = 0
        self._idle = 0
        self._silent: set[str] = set()
        self._skipped: dict[str, Tensor] = {}
        self._warned: set[str] = set()
        self._followed = Followed()
        self._roster = Roster((), ())
        self._finalizer: weakref.finalize[[], DropMuon] | None = None
        self._obstacle: str | None = None
        self._owners: dict[Tensor, Owner] = {}
        if isinstance(params, nn.Module):
            self.truncate = truncate and can_truncate(params, self.sampler)
            self._obstacle, self._owners = obstacle(params), owners(params)
            params = layer_groups(params, by, policy, example, orthogonalize)
        super().__init__(as_groups(params, policy, orthogonalize), defaults)
        self._arrange()

    # What a user reads

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return self._roster.names

    @property
    def sampler(self) -> samplers.Sampler:
        """The distribution that active sets are drawn from."""
        return self.draws.sampler

    @property
    def active(self) -> ActiveSet:
        """Indices of the layers that the next backward is for."""
        return tuple(range(len(self.layers))) if self._full_depth else self._active

    @property
    def skipped(self) -> dict[str, int]:
        """How often each layer was held still because of a gradient that was not finite."""
        counts = {name: int(count) for name, count in self._skipped.items()}
        return {name: count for name, count in counts.items() if count}

    def describe(self) -> str:
        """A table of layers, parameters, shapes, norms and why each norm was chosen."""
        return self._roster.table(
            f"DropMuon: {len(self.layers)} layers, sampler {self.draws.sampler!r}"
        )

    def __str__(self) -> str:
        return self.describe()

    @property
    def roster(self) -> Roster:
        """The layers with one record per parameter."""
        return self._roster

    def activate(self, layers: Iterable[int]) -> None:
        """Choose the active set of the next step by hand, for own schemes and measurements."""
        chosen = tuple(sorted(set(layers)))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < len(self.layers):
            raise ValueError(
                f"layers must hold indices from 0 to {len(self.layers) - 1}, and at least one, "
                f"got {list(chosen)}"
            )
        self._active = chosen
        self._freeze()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Everything trainable inside, as before after.

        Also the place to freeze or unfreeze parameters in mid-training: inside, every flag is the
        user's own, and what it is on leaving counts from then on.
        """
        self._full_depth += 1
        self._freeze()
        try:
            yield
        finally:
            self._full_depth -= 1
            self._freeze()

    # The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the active layers, then draw the next active set and freeze the rest for it."""
        if closure is None and self.updates_per_batch > 1:
            raise ValueError(
                f"updates_per_batch={self.updates_per_batch} needs step(closure): a function that "
                "clears the gradients, computes the loss, calls backward and returns the loss"
            )
        loss, moved = None, False
        frozen = self.truncate and len(self.active) < len(self.layers)
        with Replay(self.updates_per_batch, frozen, self._warn_reuse, self._obstacle) as replay:
            for update in range(self.updates_per_batch):
                if closure is not None:
                    with torch.enable_grad(), replay.turn(update):
                        value = closure()
                    loss = value if update == 0 else loss
                moved = self._update() or moved
        if moved:
            self._advance()
        else:
            self._warn_once("no gradient", no_gradient_warning(self.layers, self.active))
            self._wait()
        return loss

    def _update(self) -> bool:
        """One update of the active layers; False if there was no new gradient to follow."""
        active = self.active
        moves = list(chain.from_iterable(map(self._moves, active)))
        if not any(self._followed.is_new(each.parameter) for each in moves):
            return False
        on_host = (
            self.error_if_nonfinite
            or any(each.state["updates"] == 0 for each in moves)
            or all(each.parameter.device.type == "cpu" for each in moves)
        )
        kept, hit = screen(moves, on_host=on_host)
        self._count(hit)
        take_step(kept, self.step_rule, active)
        self._listen(active)
        self._followed.remember(member.parameter for member in self._roster.members())
        return True

    def _listen(self, active: ActiveSet) -> None:
        """Note the layers that no gradient reached, though it reached others."""
        for layer in active:
            wanted = [
                member for member in self._roster.layers[layer] if member.parameter.requires_grad
            ]
            if wanted and all(member.parameter.grad is None for member in wanted):
                self._silent.add(self.layers[layer])
        if self._silent and self._full_next:
            names = ", ".join(map(repr, sorted(self._silent)))
            self._warn_once(
                "silent layers",
                f"no gradient reached {names} in a full step; where only such layers are drawn, "
                "the last layer that always has a gradient moves with them",
            )

    def _moves(self, layer: int) -> Iterator[Move]:
        for member in self._roster.layers[layer]:
            parameter, gradient = member.parameter, member.parameter.grad
            if gradient is None or not parameter.requires_grad:
                continue
            check_gradient(member.name, gradient)
            state = self.state[parameter]
            if not state:
                state.update(new_state(parameter, member.norm))
            group = self.param_groups[member.group]
            yield Move(parameter, gradient, state, layer, member.norm, group)

    def _count(self, hit: dict[int, Tensor]) -> None:
        if hit and self.error_if_nonfinite:
            names = ", ".join(repr(self.layers[layer]) for layer in sorted(hit))
            raise RuntimeError(
                f"the gradient of {names} is not finite; nothing moved. Lower lr, clip gradients, "
                "or leave error_if_nonfinite at False to skip such layers"
            )
        for layer, count in hit.items():
            name = self.layers[layer]
            self._skipped[name] = self._skipped[name] + count if name in self._skipped else count

    def _advance(self) -> None:
        """Count the step, draw the next set, freeze the rest."""
        if self._full_next:
            self._start_all_layers()
        self._steps += 1
        self._idle = 0
        self._full_next = False
        self._active = self._next_set()
        self._freeze()

    def _wait(self) -> None:
        """Not for ever: after some steps without a gradient, one more layer may move in each."""
        self._idle += 1
        others = [layer for layer in range(len(self.layers)) if layer not in self._active]
        if self._idle > _PATIENCE and others:
            self._active = tuple(sorted({*self._active, others[-1]}))
            self._freeze()

    def _next_set(self) -> ActiveSet:
        """The set that is drawn, and a layer that surely has a gradient: backward needs one."""
        drawn = self.draws.at(self._steps, len(self.layers))
        if any(map(self._is_sure, drawn)):
            return drawn
        sure = [layer for layer in range(len(self.layers)) if self._is_sure(layer)]
        return tuple(sorted({*drawn, *sure[-1:]}))

    def _start_all_layers(self) -> None:
        """After a full step all trainable parameters have a state."""
        for member in self._roster.members():
            if member.parameter.requires_grad and not self.state[member.parameter]:
                self.state[member.parameter].update(new_state(member.parameter, member.norm))

    def _is_sure(self, layer: int) -> bool:
        return self._freezer.wants(layer) and self.layers[layer] not in self._silent

    def _freeze(self) -> None:
        self._freezer.apply(self.active if self.truncate else range(len(self.layers)))

    def _warn_reuse(self, message: str) -> None:
        self._warn_once("reuse", message)

    def _warn_once(self, topic: str, message: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(message, stacklevel=5)

    # Setting up, saving and loading

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters: to an existing layer, or as new last layers. The next step is full."""
        norm = param_group.get("norm")
        if norm is not None:
            param_group["norm"] = norms.by_name(norm, self._orthogonalize)
            if isinstance(param_group["norm"], norms.AdamW):
                param_group.setdefault("lr", self._adamw_lr)
        check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if len(self._roster) == 0:
            return
        try:
            self._arrange()
        except BaseException:
            self.param_groups.pop()
            raise

    def _arrange(self) -> None:
        """Read the layers off the groups; the next step moves all of them."""
        roster = Roster.of(self.param_groups, self._policy, self._orthogonalize)
        self.draws.sampler.check(len(roster))
        self.step_rule.check(len(roster))
        self._roster = roster
        parameters = [[member.parameter for member in layer] for layer in roster.layers]
        self._freezer = Freezer(parameters, self._owners)
        self._full_next = self._steps > 0 or self.draws.full_start
        self._active = tuple(range(len(roster))) if self._full_next else self._next_set()
        self._freeze()
        self._release_at_end()

    def _release_at_end(self) -> None:
        """When the optimizer is gone, its model's flags are as the user set them."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, self._freezer.release)
        self._finalizer.atexit = False

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on; `torch.load(weights_only=True)` reads it back."""
        with checkpoint.no_hooks(self, "_optimizer_state_dict_post_hooks") as hooks:
            state = super().state_dict()
        for group in state["param_groups"]:
            group["norm"] = None if group["norm"] is None else repr(group["norm"])
            if "layer" in group:
                group["layer"] = str(group["layer"])
        state[checkpoint.KEY] = {
            "version": checkpoint.VERSION,
            "layers": list(self.layers),
            "sampler": repr(self.draws.sampler),
            "seed": self.draws.seed,
            "resample_every": self.draws.resample_every,
            "total_steps": self.draws.total_steps,
            "full_start": self.draws.full_start,
            "steps": self._steps,
            "full_next": self._full_next,
            "active": list(self._active),
            "silent": sorted(self._silent),
            "skipped": self.skipped,
        }
        return checkpoint.call_hooks(hooks, self, state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a state was saved. A state that does not fit changes nothing."""
        with (
            checkpoint.no_hooks(self, "_optimizer_load_state_dict_pre_hooks") as before,
            checkpoint.no_hooks(self, "_optimizer_load_state_dict_post_hooks") as after,
        ):
            self._load(checkpoint.call_hooks(before, self, dict(state_dict)))
        for hook in after.values():
            hook(self)

    def _load(self, state_dict: dict[str, Any]) -> None:
        norm_of = {member.parameter: member.norm for member in self._roster.members()}
        checkpoint.check_fit(
            state_dict,
            self.param_groups,
            layers=self.layers,
            sampler=repr(self.draws.sampler),
            norm_of=norm_of,
        )
        own = state_dict[checkpoint.KEY]
        defaults = dict(self.defaults)
        kept = [{key: g.get(key) for key in ("norm", "layer")} for g in self.param_groups]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != checkpoint.KEY})
        for group, mine in zip(self.param_groups, kept, strict=True):
            group.update({key: value for key, value in mine.items() if key in group})
            for key, value in defaults.items():
                group.setdefault(key, value)
        for parameter, state in self.state.items():
            if "step" in state:
                state["step"] = state["step"].to(parameter.device)
        for name in ("seed", "resample_every", "total_steps", "full_start"):
            setattr(self.draws, name, own[name])
        self._steps, self._full_next = own["steps"], own["full_next"]
        self._active, self._silent = tuple(own["active"]), set(own["silent"])
        self._skipped = {name: torch.tensor(count) for name, count in own["skipped"].items()}
        self._followed = Followed()
        self._freeze()

    def __getstate__(self) -> dict[str, Any]:
        own = {key: value for key, value in self.__dict__.items() if key in _OWN}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._followed = Followed()
        if "_freezer" in state:
            self._owners, self._finalizer = {}, None
            self._release_at_end()
