"""Stacked experts: each moves as a parameter of its own would, and keeps still without a token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dropmuon import DropMuon, norms, reference, rules
from dropmuon.model.policies import Choice
from dropmuon.model.roster import Member
from dropmuon.step.moves import screen, take_step
from tests.step.small_steps import same_bits
from tests.step.test_moves_on_device import GROUP, NoWaiting

COUNT = 3
USES = st.lists(st.sets(st.integers(0, COUNT - 1)), min_size=1, max_size=6)


class Experts(nn.Module):
    up: nn.Parameter
    down: nn.Parameter

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {
            "up": (COUNT, 5, 4),
            "down": (COUNT, 4, 5),
            "up_bias": (COUNT, 5),
        }.items():
            values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            self.register_parameter(name, nn.Parameter(values))


def gradient(parameter: Tensor, step: int, used: set[int]) -> Tensor:
    """A made-up gradient, zero for the experts that are not used."""
    generator = torch.Generator().manual_seed(1000 * step + parameter[0].numel())
    found = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    idle = sorted(set(range(COUNT)) - used)
    found[idle] = 0.0
    return found.to(parameter.dtype)


def follow(optimizer: DropMuon, model: nn.Module, step: int, used: set[int]) -> None:
    for parameter in model.parameters():
        parameter.grad = gradient(parameter, step, used)
    optimizer.step()


@settings(derandomize=True, deadline=None, max_examples=40)
@given(uses=USES, nesterov=st.booleans(), momentum=st.sampled_from([0.0, 0.5, 0.9]))
def test_a_stack_of_experts_is_algorithm_1_with_each_expert_a_tensor_of_its_own(
    uses: list[set[int]], nesterov: bool, momentum: float
) -> None:
    model = Experts(torch.float64)
    del model.up_bias
    start = [expert.detach().clone() for stack in (model.up, model.down) for expert in stack]
    optimizer = DropMuon(
        model,
        lr=0.1,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=0.3,
        sampler="full",
        policy=lambda member: norms.Spectral("svd", blocks="batch"),
    )
    for step, used in enumerate(uses):
        follow(optimizer, model, step, used)

    def of_step(X: Any, k: int, part: int) -> list[list[Tensor]]:
        stacks = [gradient(stack, k, uses[k]) for stack in (model.up, model.down)]
        return [[expert for stack in stacks for expert in stack]]

    expected = reference.algorithm_1_in_parts(
        [start],
        of_step,
        [[[0]]] * len(uses),
        t=0.1,
        beta=1 - momentum,
        norm=lambda x: "spectral",
        nesterov=nesterov,
        weight_decay=0.3,
        rests=lambda x: True,
    )
    ours = [expert for stack in (model.up, model.down) for expert in stack.detach()]
    torch.testing.assert_close(ours, expected[0], rtol=1e-9, atol=1e-9)


POLICIES: dict[str, Any] = {
    "spectral": "spectral",
    "muon": "muon",
    "scion": "scion",
    "sign": "sign",
    "adamw": lambda member: Choice(norms.AdamW(), "a test"),
}


def tensors_of(optimizer: DropMuon, model: nn.Module) -> dict[str, Tensor]:
    """Parameters and states that have a block per expert."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = parameter.detach().clone()
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor) and value.ndim:
                found[f"{name}.{key}"] = value.clone()
    return found


@pytest.mark.parametrize("rule", [rules.Constant(), rules.Sharp()], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("start", ["gradient", "zero"])
def test_an_expert_without_a_token_keeps_still_bit_for_bit(
    policy: str, rule: rules.StepRule, start: Any
) -> None:
    model = nn.ModuleDict({"experts": Experts(), "head": nn.Linear(2, 2).requires_grad_(False)})
    optimizer = DropMuon(
        model,
        weight_decay=0.1,
        momentum=0.9,
        sampler="full",
        policy=POLICIES[policy],
        step_rule=rule,
        momentum_start=start,
    )
    experts = model["experts"]
    follow(optimizer, experts, 0, {0, 1})
    for step, used in enumerate([{0, 2}, {1}, set[int](), {0, 1, 2}], start=1):
        before = tensors_of(optimizer, experts)
        follow(optimizer, experts, step, used)
        for name, after in tensors_of(optimizer, experts).items():
            for expert in range(COUNT):
                is_still = same_bits(before[name][expert], after[expert])
                assert is_still == (expert not in used), (name, step, expert)


def test_an_expert_that_is_used_late_starts_at_its_first_gradient() -> None:
    model = Experts()
    optimizer = DropMuon(model, momentum=0.9, sampler="full")
    for step, used in enumerate([{0}, {0}, {0, 2}]):
        follow(optimizer, model, step, used)
    momentum = optimizer.state[model.up]["momentum_buffer"]
    assert same_bits(momentum[2], model.up.grad[2])
    assert not momentum[1].any()
    assert not torch.equal(momentum[0], model.up.grad[0])


def test_the_sign_of_a_zero_is_a_bit_too() -> None:
    model = Experts()
    optimizer = DropMuon(model, momentum=0.9, sampler="full")
    follow(optimizer, model, 0, {0, 1, 2})
    momentum = optimizer.state[model.up]["momentum_buffer"]
    momentum[1, 0] = -0.0
    before = momentum.clone()
    follow(optimizer, model, 1, {0})
    assert same_bits(momentum[1], before[1])


def test_a_sharp_step_is_as_long_as_the_experts_in_use_say() -> None:
    """What an idle expert remembers lengthens nobody's step."""
    steps = []
    for first in ({0, 1, 2}, {0}):
        model = Experts(torch.float64)
        optimizer = DropMuon(
            model,
            momentum=0.0,
            sampler="full",
            step_rule=rules.Sharp(),
            policy=lambda member: norms.Spectral("svd", blocks="batch"),
        )
        follow(optimizer, model, 0, first)
        before = model.up.detach().clone()
        follow(optimizer, model, 1, {0})
        steps.append((model.up.detach() - before)[0])
    torch.testing.assert_close(*steps)


def test_a_matrix_that_is_no_stack_follows_its_momentum_through_a_zero_gradient() -> None:
    model = nn.Linear(4, 3, bias=False)
    optimizer = DropMuon(model, momentum=0.9, sampler="full")
    for scale in (1.0, 0.0):
        before = model.weight.detach().clone()
        model.weight.grad = scale * torch.ones(3, 4)
        optimizer.step()
        assert not torch.equal(before, model.weight)


@pytest.mark.parametrize("norm", [norms.Spectral(blocks="batch"), norms.AdamW()], ids=str)
def test_experts_rest_without_waiting_for_the_device_whatever_else_is_not_finite(norm: Any) -> None:
    model, members, state = Experts(), [], {}
    for layer, (name, parameter) in enumerate(model.named_parameters()):
        member = Member(f"experts.{name}", parameter.detach(), model, layer, 3)
        member.norm, member.reason, member.group = norm, "a test", 0
        member.parameter.grad = gradient(parameter, 1, {0})
        names = ("exp_avg", "exp_avg_sq") if isinstance(norm, norms.AdamW) else ("momentum_buffer",)
        began = torch.full_like(member.parameter, float(layer > 0))  # layer 0 has zeros
        own: dict[str, Any] = {key: began.clone() for key in names}
        own |= {"updates": 1, "step": torch.tensor(1.0)}
        state[member.parameter] = own
        members.append(member)
    members[0].parameter.grad[0, 0] = math.nan
    before = [member.parameter.clone() for member in members]
    with NoWaiting():
        kept, finite, _ = screen(members, on_host=False)
        take_step(kept, [GROUP], state, rules.Constant(), (0, 1, 2), finite)
    for member, old in zip(members, before, strict=True):
        stays = [same_bits(old[e], member.parameter[e]) for e in range(COUNT)]
        assert stays == ([True] * COUNT if member.layer == 0 else [False, True, True])
        assert all(
            value.isfinite().all()
            for value in state[member.parameter].values()
            if isinstance(value, Tensor)
        )
