"""What a user passes to the optimizer: checked, and brought into one form."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from dropmuon.checks import whole_number
from dropmuon.model.policies import Policy
from dropmuon.model.roster import named_groups
from dropmuon.samplers import Full, Sampler
from dropmuon.step.draws import Draws
from dropmuon.step.rules import Constant, StepRule

__all__ = [
    "as_groups",
    "can_truncate",
    "check_settings",
    "momentum_or_default",
    "step_rule_or_default",
]


def step_rule_or_default(rule: StepRule | None) -> StepRule:
    """The rule that is given, or steps of constant radius."""
    if rule is not None and not isinstance(rule, StepRule):
        raise TypeError(
            f"step_rule must be a rules.StepRule, got {_kind_of(rule)}; for a fixed length, set lr"
        )
    return rule or Constant()


def can_truncate(model: nn.Module, sampler: Sampler) -> bool:
    """Whether layers may lack gradients: DDP, as it is by default, waits for every one."""
    if not isinstance(model, nn.parallel.DistributedDataParallel) or isinstance(sampler, Full):
        return True
    if model.find_unused_parameters and not model.static_graph:
        return True
    warnings.warn(
        "params is a DistributedDataParallel that waits for every gradient, so all are computed "
        "(truncate=False); to save the backward of frozen layers, wrap the model with "
        "find_unused_parameters=True and no static_graph",
        stacklevel=3,
    )
    return False


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def momentum_or_default(given: float | None, rule: StepRule) -> float:
    """The momentum to use: what is given, else what the rule's theorem asks for, else 0.5."""
    if given is None:
        return 0.5 if rule.momentum is None else rule.momentum
    if rule.momentum is not None and given != rule.momentum:
        raise ValueError(
            f"momentum={given} contradicts {rule!r}, whose theorem has {rule.momentum}; "
            "leave momentum out"
        )
    return given


def check_settings(draws: Draws, updates_per_batch: int) -> None:
    """Refuse numbers of steps and seeds that no run can have."""
    whole_number("resample_every", draws.resample_every)
    whole_number("updates_per_batch", updates_per_batch)
    if draws.total_steps is not None:
        whole_number("total_steps", draws.total_steps)
    if not isinstance(draws.seed, int) or not 0 <= draws.seed < 2**64:
        raise ValueError(f"seed must be a whole number in [0, 2**64), got {draws.seed!r}")
    if draws.sampler.needs_progress and draws.total_steps is None:
        raise ValueError(
            f"total_steps is missing: {draws.sampler!r} changes with progress; give the number of "
            "step() calls that you plan"
        )


def as_groups(params: Iterable[Any], policy: str | Policy, orthogonalize: Any) -> list[Any]:
    """Group dicts and tensors as they are; `(name, parameter)` pairs as groups with layers."""
    if isinstance(params, Tensor | str | type) or not isinstance(params, Iterable):
        raise TypeError(
            f"params must be a model or an iterable of parameters, got {_kind_of(params)}; "
            "give model, model.parameters(), model.named_parameters() or groups"
        )
    items = list(params)
    if not items:
        raise ValueError("params has nothing to optimize: it is empty")
    if all(isinstance(item, tuple) for item in items):
        return named_groups(items, policy, orthogonalize)
    return items
