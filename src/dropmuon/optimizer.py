"""The optimizer: Algorithm 1 (Drop-Muon) as a `torch.optim.Optimizer`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from dropmuon import norms, samplers
from dropmuon.backward.lookups import LookUps
from dropmuon.backward.parts import Parts, check_parts
from dropmuon.backward.replay import Replay, obstacle
from dropmuon.backward.settled import find_ddp
from dropmuon.backward.strays import StrayGradients
from dropmuon.checks import unknown_name, whole_number
from dropmuon.model.engines import listed, refuse_zero, same
from dropmuon.model.groups import make_groups
from dropmuon.model.layers import By
from dropmuon.model.outputs import Tied
from dropmuon.model.policies import Policy, PolicyName
from dropmuon.model.roster import Member, Roster
from dropmuon.model.routing import Routing
from dropmuon.samplers.base import ActiveSet, active_set
from dropmuon.shards import Group
from dropmuon.step.adaptation import Adaptation
from dropmuon.step.advice import Advice
from dropmuon.step.agreement import Agreement
from dropmuon.step.arranged import ArrangedOptimizer
from dropmuon.step.draws import Draws, FullStart, check_windows, joined
from dropmuon.step.moves import is_rehearsal, screen, screens_on_host, take_step
from dropmuon.step.overview import Tally
from dropmuon.step.rates import ADAMW_LR, check_adamw, rate_of
from dropmuon.step.rules import StepRule, momentum_or_default, or_default
from dropmuon.step.state import KEY, check_group
from dropmuon.step.turns import check_turns, stretch

__all__ = ["DropMuon"]


class DropMuon(ArrangedOptimizer):
    r"""Drop-Muon: move a random set of layers per step, and let backward stop at the lowest.

    .. math::
        M_i &= \mu M_i + (1-\mu)\,\nabla_i f(X;\xi) \\
        X_i &= X_i + \mathrm{lmo}_{\|\cdot\|_{(i)} \le t_i}(M_i)
        \qquad\text{for } i \in S^k, \quad S^k \sim \mathcal D

    Layers outside the active set :math:`S^k` keep parameters and momentum bit for bit. `step()`
    moves :math:`S^k`, then draws :math:`S^{k+1}` and freezes the rest for the next backward. The
    draw is a function of `(seed, step)`, so all ranks agree without communication. The first step
    moves every layer and starts its momentum at its own gradient. The theorems assume the second
    of these, :math:`M_i^0 = \nabla_i f(X^0;\xi^0)`, but not that every layer moves: see
    `full_start`.

    Args:
        params: a model; or `(name, parameter)` pairs; or group dicts, which may carry `layer`,
            `norm` and any per-group setting (see `layer_groups`); or tensors.
        lr: the radius :math:`t_i`, or a factor on it (see `step_rule`).
        momentum: the share :math:`\mu` of the old momentum that is kept (the paper's beta is
            1-mu); 0.5 unless the step rule requires another.
        nesterov: follow (1-mu)*G + mu*M instead of M.
        weight_decay: decoupled, as a factor of lr; active layers only.
        maximize: ascend.
        sampler: a `samplers.Sampler` or a name. The default is the paper's first choice; with
            `parts`, "adaptive" is the one to begin with.
        seed: of the draws.
        total_steps: planned number of `step()` calls; gives samplers their progress.
        resample_every: keep an active set for this many steps.
        full_start: True moves every layer in the first step; "momentum" computes all gradients in
            it to start every momentum, but moves :math:`S^0` only, as Algorithm 1 is printed; False
            samples that step like any other (Algorithms 2 and 3), and a layer's momentum starts
            when it is first drawn.
        momentum_start: "gradient", or "zero" as in `torch.optim.Muon`.
        updates_per_batch: updates per `step(closure)`, all on one batch and one active set; what
            the frozen layers compute is computed once.
        parts: cut the batch of a step into this many parts, each with an active set of its own: a
            backward is a part. A layer's gradient is the mean over the parts in which it was
            active, and every layer that was active in any part moves. See also `split`.
        turns: let matrices take turns: each moves at every `turns`-th step, that many times as far,
            and its momentum follows every gradient. For small batches, where orthogonalisation is
            a large part of a step. What costs little, and AdamW, moves at every step.
        truncate: False computes all gradients and skips only the updates of inactive layers;
            "refresh" uses those gradients too: every layer's momentum follows each of them, so that
            none is stale when its layer moves.
        by, example: how a model is cut into layers, and an input to order them by execution: a
            tensor, a tuple of positional or a mapping of keyword arguments.
        tied: which layer an embedding that is tied to the head moves with: "head" leaves its
            look-up out of the gradient above the lowest cutoff, "first" lets it move at that only.
        model: where `params` are groups or tensors, the model to find their layers and norms in.
        policy: norm per parameter: spectral (the paper's), muon, muon-adamw (with steps as long as
            AdamW's), scion, euclidean, sign, or a callable of a `policies.Member`.
        orthogonalize: newton-schulz, fast, svd, cubic, polar-express, coefficients, a callable.
        adamw_lr: learning rate of the parameters that a policy gives to AdamW.
        adamw_ratio: the same as a ratio of `lr`, in place of `adamw_lr`: then all groups have the
            same `lr`, and a scheduler that sets it for all of them keeps the proportion.
        step_rule: a `rules.StepRule`; by default a step has length lr in its layer's norm. A group
            may have its own: `norm="euclidean"` with `rules.Sharp()` moves it along the gradient
            itself, without the cost :math:`c_i^\sharp` of an LMO.
        foreach: False moves parameters one by one: slower, with less peak memory.
        error_if_nonfinite: raise on a NaN or infinite gradient instead of skipping its layer.
        process_group: ranks that have gradients of their own, as of experts, and must move the same
            layers: they agree by a small all-reduce per step. Averaged gradients need none.
    """

    _ranks = Agreement()  # copies decide alone

    def __init__(
        self,
        params: nn.Module | ParamsT,
        lr: float | Tensor = 0.1,
        momentum: float | None = None,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        sampler: samplers.SamplerName | samplers.Sampler = "uniform",
        seed: int = 0,
        total_steps: int | None = None,
        resample_every: int = 1,
        full_start: FullStart = True,
        momentum_start: Literal["gradient", "zero"] = "gradient",
        updates_per_batch: int = 1,
        parts: int = 1,
        turns: int = 1,
        truncate: bool | Literal["refresh"] = True,
        by: By = "module",
        example: Any = None,
        tied: Tied = "head",
        model: nn.Module | None = None,
        policy: PolicyName | Policy = "spectral",
        orthogonalize: norms.Orthogonalize = "newton-schulz",
        adamw_lr: float = ADAMW_LR,
        adamw_ratio: float | None = None,
        step_rule: StepRule | None = None,
        foreach: bool = True,
        error_if_nonfinite: bool = False,
        process_group: Group = None,
    ) -> None:
        refuse_zero()
        self._ranks = Agreement(process_group)
        self.draws = Draws(
            samplers.by_name(sampler), seed, resample_every, total_steps, full_start, turns
        )
        self.step_rule = or_default(step_rule)
        check_turns(turns, self.step_rule)
        self.updates_per_batch = whole_number("updates_per_batch", updates_per_batch)
        self._parts = Parts(whole_number("parts", parts))
        check_parts(self.parts, self.updates_per_batch, self.sampler)
        check_windows(self.sampler, self.parts)
        if not isinstance(truncate, bool) and truncate != "refresh":
            raise unknown_name("truncate", str(truncate), ["True", "False", "refresh"])
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
            "step_rule": None,
            KEY: None,
        }
        check_group(defaults)
        check_adamw(adamw_lr, adamw_ratio)
        self._routing = Routing(policy, orthogonalize, float(lr), adamw_lr, adamw_ratio)
        self._obstacle: str | None = None
        self._full_depth = 0
        self._steps = 0
        self._moving: ActiveSet | None = None
        self._adaptation: Adaptation | None = None
        self._has_gradient: dict[int, bool] = {}
        self._tally = Tally()
        self._advice = Advice()
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._strays, self._lookups = StrayGradients(()), LookUps()
        self.roster = Roster((), ())
        whole = params if isinstance(params, nn.Module) else model
        if whole is not None:
            self._obstacle, self._model = obstacle(whole), weakref.ref(whole)
            self._suit(find_ddp(whole))
        groups, members, self._structure = make_groups(
            params, by, example, self._routing, model, tied
        )
        super().__init__(groups, defaults)
        self._arrange(members)

    # For users to read

    @property
    def active(self) -> ActiveSet:
        """Indices of the layers that the next backward is for."""
        return self._all if self._full_depth else self._parts.current

    # For users to set

    def activate(self, layers: Iterable[int]) -> None:
        """Choose the active set of the next step, in all its parts, by the indices of layers."""
        chosen = active_set("layers", layers, len(self.layers))
        self._moving = None
        self._parts.begin([chosen] * self.parts, measured=self._parts.meter is not None)
        self._freeze()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Make every layer trainable inside the block; restore the active set on exit.

        This is also the place to freeze or unfreeze parameters during training: inside, every flag
        is the user's own, and its value on exit holds from then on.
        """
        self._full_depth += 1
        self._freeze()
        try:
            yield
        finally:
            self._full_depth -= 1
            self._freeze()

    def release(self) -> None:
        """Give all flags back: what only this optimizer froze is trainable again, for good.

        Call it when training is over, before another optimizer is made or the model is handed on.
        It may be called twice. Taking a step after it is an error; `with optimizer:` takes the
        flags back, until the end of the block.
        """
        self._released = True
        self._parts.unwatch()
        self._unwait()
        self._lookups.close()
        self._flags.observe()
        self._flags.release()

    def __enter__(self) -> Self:
        self._released = False
        self._watch()
        self._freeze()
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    # The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the active layers, then draw the next active set and freeze the rest for it.

        As with every torch optimizer, existing gradients are followed, however old, and a step
        without any changes nothing.
        """
        if self._released:
            raise RuntimeError(
                "step() came after release(), which gave all flags back; take steps inside of "
                "'with optimizer:', or use full() to make everything trainable for a while"
            )
        if closure is None and self.updates_per_batch > 1:
            raise ValueError(
                f"updates_per_batch={self.updates_per_batch} needs step(closure): a function that "
                "clears the gradients, computes the loss, calls backward and returns the loss"
            )
        if not self._has_begun or not same(self._listed, listed(self.param_groups)):
            self._follow_replaced()
        if self._is_rehearsal():
            self._rehearse()
            return None
        loss: Any = None
        moved: ActiveSet = ()
        frozen = self.truncate is True and len(self.active) < len(self.layers)
        against = self._obstacle or self._lookups.obstacle
        with Replay(self.updates_per_batch, frozen, self._advice.on_reuse, against) as replay:
            for update in range(self.updates_per_batch):
                if closure is not None:
                    with torch.enable_grad(), replay.update(update):
                        value = closure()
                    loss = value if update == 0 else loss
                moved = self._update() or moved
        if moved:
            self._draw_next(moved)
        else:
            self._advice.on_no_gradient([self.layers[layer] for layer in self.active])
            self._freeze()
        return loss

    def _is_rehearsal(self) -> bool:
        """Return whether `torch.distributed.checkpoint` only wants to see states, on all ranks."""
        if self._steps > 0 or any(map(rate_of, self.param_groups)):
            return False
        mine = not self.state and is_rehearsal(self.param_groups)
        return self._ranks.all_true(mine, self._device)

    def _update(self) -> ActiveSet:
        """Move the layers that were active and have a gradient; return the layers of the update."""
        whole = self._full_depth > 0 and not self._parts.done
        alone = self._ranks.group is None  # others may have had more parts
        reached = self._parts.reached if alone else self._parts.planned
        active = self._all if whole else reached
        moving = active if whole or self._moving is None else self._moving
        starts = self.draws.is_full(self._steps)
        followed = self._all if self.truncate == "refresh" else active if starts else moving
        members = [m for layer in followed for m in self.roster.layers[layer] if self._can_move(m)]
        found = self._found(members)
        if found is None:
            return ()
        self._parts.correct((member.parameter, member.layer) for member in members)
        self._start(members)
        on_host = self.error_if_nonfinite or screens_on_host(members, self.state)
        agree = partial(self._ranks.all_finite, layers=self._all, device=self._device)
        kept, finite, hit = screen(members, on_host=on_host, agree=agree)
        self._refuse(hit)
        turn = self.draws.turn_at(self._steps)
        rule = self.step_rule
        of_turn = partial(stretch, moving=moving, turn=turn, turns=self.draws.turns)
        take_step(kept, self.param_groups, self.state, rule, moving, finite, of_turn)
        self._tally.count(self.layers, {member.layer for member in kept} & {*moving}, hit)
        self._note_gradients(followed, found)
        if self.parts == 1:
            self._look_for_missing(active, found)
        return active

    def _draw_next(self, moved: ActiveSet) -> None:
        """Count the step, draw the next active set, freeze the rest.

        If a full step's set was chosen by hand, the full step is still to come.
        """
        self._count_saved(moved)
        if self._steps == self.draws.full_step and moved != self._all:
            self.draws.make_full(self._steps + 1)
        self._advice.on_parts(self._parts.done, self.parts)
        self._advice.on_rates(self.param_groups)
        if self._adaptation is not None and self._parts.meter is not None:
            ranks = self._ranks.group
            self._adaptation.learn(self._steps, self._parts.meter, self.draws.turns, ranks)
        self._steps += 1
        self._draw()

    def _draw(self) -> None:
        adaptation = self._adaptation
        shares = None if adaptation is None else adaptation.sampler_at(self._steps)
        measured = adaptation is not None and adaptation.measures_at(self._steps)
        sets = self.draws.sets_at(self._steps, len(self.layers), self.parts, shares)
        self._moving = None
        model = None if self._model is None else self._model()
        if self._steps <= 1 and model is not None and self.truncate is True:
            self._advice.on_graphs(model, self.sampler, len(self.layers))
        if self.draws.is_full(self._steps) or (self.parts > 1 and self.truncate is not True):
            # All gradients of all parts are there, whatever moves.
            self._moving = tuple(sorted({layer for each in sets for layer in each}))
            sets = (self._all,) * self.parts
        self._parts.begin(sets, measured=measured)
        self._freeze()

    def _end_part(self) -> None:
        """Go to the next part: the next forward uses its active set."""
        if self._waits:
            self._discard_inactive()
        self._look_for_missing(self.active, self._parts.arrived)
        self._parts.finish(self.active)
        self._freeze()

    def _found(self, members: Iterable[Member]) -> set[int] | None:
        """Return the layers with a gradient, on any rank until it is known which can have one.

        None if there is nothing to follow. Ranks of a group count every step from then on, since
        one that finds nothing must not stay behind the others.
        """
        found, is_known = {m.layer for m in members}, len(self._has_gradient) == len(self.layers)
        if not is_known:
            found = self._ranks.any_found(found, len(self.layers), self._device)
        return found if found or (is_known and self._ranks.group is not None) else None

    @property
    def _device(self) -> torch.device:
        return self._listed[0].device

    def _note_gradients(self, active: ActiveSet, found: set[int]) -> None:
        """Record whether a layer has a gradient the first time it is active, mostly at step 0.

        After a full step all trainable parameters have a state, those without a gradient too.
        """
        if len(self._has_gradient) == len(self.layers):
            return
        self._flags.observe()
        for layer in active:
            if self._flags.wants(layer):
                self._has_gradient.setdefault(layer, layer in found)
        if active != self._all:
            return
        self._start(member for member in self.roster.members() if member.parameter.requires_grad)
        self._advice.on_silent(
            self.layers[i] for i in active if not self._has_gradient.get(i, True)
        )

    def _look_for_missing(self, active: ActiveSet, found: set[int]) -> None:
        """Look for layers that get no gradient because layers below are frozen."""
        if self.truncate is True and len(active) < len(self.layers):
            known = [i for i in active if self._has_gradient.get(i) and self._flags.wants(i)]
            self._advice.on_truncated(known, found, self.layers)

    def _can_have_gradient(self, layer: int) -> bool:
        return self._flags.wants(layer) and self._has_gradient.get(layer, True)

    def _can_move(self, member: Member) -> bool:
        parameter, gradient = member.parameter, member.parameter.grad
        if gradient is None or not (parameter.requires_grad or self._flags.froze(parameter)):
            return False
        if gradient.layout != torch.strided:
            raise RuntimeError(
                f"the gradient of {member.name!r} is sparse, but DropMuon needs dense ones; "
                "build the embedding with sparse=False"
            )
        return True

    def _refuse(self, hit: dict[int, Tensor]) -> None:
        """Raise RuntimeError where layers that are not finite are errors."""
        if hit and self.error_if_nonfinite:
            names = ", ".join(repr(self.layers[layer]) for layer in sorted(hit))
            raise RuntimeError(
                f"the gradient of {names} is not finite; nothing moved. Lower lr, clip gradients, "
                "or leave error_if_nonfinite at False to skip such layers"
            )

    def _freeze(self) -> None:
        """Make exactly the active layers trainable, at least one of which can have a gradient."""
        if self._flags.observe():
            self._advice.on_another()
        self._parts.replace(
            joined(each, self._can_have_gradient, len(self.layers)) for each in self._parts.sets
        )
        freezes = self.truncate is True and not self._released and not self._waits
        shown = self.active if freezes else self._all
        self._flags.apply(shown)
        self._lookups.apply(shown)
        self._strays.begin(min(shown))
