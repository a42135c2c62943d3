"""A step never waits for its device: flags on the device hold layers as the host would."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dropmuon import DropMuon, norms, rules
from dropmuon.model.policies import PolicyName
from dropmuon.model.roster import Member
from dropmuon.step.moves import new_state, screen, take_step
from tests.step.small_steps import BAD, POLICIES, all_equal, make_model

NORMS = [
    norms.Spectral(),
    norms.Spectral("svd"),
    norms.Spectral("cubic"),
    norms.Spectral("polar-express"),
    norms.Spectral(scale="rms"),
    norms.Euclidean(),
    norms.Sign(),
    norms.ColumnWise(),
    norms.RowWise(),
    norms.AdamW(),
]
RULES = [rules.Constant(), rules.Sharp(), rules.Generalized(1.0, 0.5)]


class NoWaiting(TorchDispatchMode):
    """Refuses every operator that hands a value of a tensor to the host."""

    WAITING = frozenset(
        {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "item"}
        | {"_assert_async", "unique", "_unique2", "allclose"}
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.WAITING, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


GROUP = {
    "lr": 0.1,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.1,
    "maximize": False,
    "momentum_start": "gradient",
    "foreach": True,
}


class Case(NamedTuple):
    """Members in mid-training, with their group and state."""

    members: list[Member]
    groups: list[dict[str, Any]]
    state: dict[Tensor, dict[str, Any]]

    def step(self, rule: rules.StepRule, *, on_host: bool | None) -> dict[int, Tensor]:
        """One update, screened; without screening for None. The layers that were hit."""
        kept, finite, hit = self.members, None, {}
        if on_host is not None:
            kept, finite, hit = screen(self.members, on_host=on_host)
            assert (finite is None) == on_host
            assert on_host or kept == self.members
        take_step(kept, self.groups, self.state, rule, (0, 1), finite)
        return hit

    def tensors(self, layer: int | None = None) -> Iterator[Tensor]:
        for member in self.members:
            if layer in (None, member.layer):
                yield member.parameter
                state = self.state[member.parameter]
                yield from (value for value in state.values() if isinstance(value, Tensor))


def make_case(norm: Any, device: str = "cpu", seed: int = 0, **group: Any) -> Case:
    """Two layers in mid-training, of a matrix and a vector each."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    members, state = [], {}
    for number, shape in enumerate([(4, 3), (3,), (4, 3), (5,)]):
        member = Member(str(number), random(*shape), layer=number // 2, num_layers=2)
        member.norm, member.reason, member.group = norm, "a test", 0
        member.parameter.grad = random(*shape)
        own = {**new_state(member), "updates": 1}
        for key in {"momentum_buffer", "exp_avg", "exp_avg_sq"} & set(own):
            own[key] = random(*shape).abs()
        state[member.parameter] = own
        members.append(member)
    return Case(members, [{**GROUP, **group}], state)


def test_the_guard_against_waiting_sees_every_way_to_wait() -> None:
    flag = torch.ones(3)
    ways = [
        lambda: flag.sum().item(),
        lambda: bool(flag.sum() > 0),
        lambda: float(flag[0]),
        lambda: torch.equal(flag, flag),
        lambda: torch.where(flag > 0),
    ]
    for way in ways:
        with pytest.raises(AssertionError, match="waits"), NoWaiting():
            way()


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_no_norm_and_no_rule_waits_for_the_device(norm: Any, rule: Any, nesterov: bool) -> None:
    case = make_case(norm, nesterov=nesterov)
    case.members[0].parameter.grad[0, 0] = math.nan
    with NoWaiting():
        hit = case.step(rule, on_host=False)
    assert {layer: int(count) for layer, count in hit.items()} == {0: 1, 1: 0}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_step_runs_on_a_device_without_values(norm: Any, foreach: bool) -> None:
    hit = make_case(norm, "meta", foreach=foreach).step(rules.Constant(), on_host=False)
    assert all(count.device.type == "meta" for count in hit.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_after_the_first_one_a_whole_step_never_waits_for_its_device(policy: PolicyName) -> None:
    model = make_model().to("meta")
    optimizer = DropMuon(model, lr=0.1, policy=policy, weight_decay=0.1)
    for member in optimizer.roster.members():
        optimizer.state[member.parameter].update(new_state(member), updates=1)
    for _ in range(4):
        active = optimizer.active
        model(torch.ones(2, 4, device="meta")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert active != (0, 1, 2, 3)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("norm", NORMS, ids=str)
@given(value=st.sampled_from(BAD), number=st.integers(0, 3), seed=st.integers(0, 9))
@settings(derandomize=True, deadline=None, max_examples=8)
def test_flags_hold_a_layer_as_dropping_it_does(
    norm: Any, rule: Any, value: float, number: int, seed: int
) -> None:
    flagged, dropped = make_case(norm, seed=seed), make_case(norm, seed=seed)
    for case in (flagged, dropped):
        case.members[number].parameter.grad.view(-1)[-1] = value
    before = [tensor.clone() for tensor in flagged.tensors()]
    for case, on_host in ((flagged, False), (dropped, True)):
        hit = case.step(rule, on_host=on_host)
        assert {layer for layer, count in hit.items() if count} == {number // 2}
    for ours, theirs in zip(flagged.tensors(), dropped.tensors(), strict=True):
        torch.testing.assert_close(ours, theirs)
    held = list(flagged.tensors(number // 2))
    for tensor in held:
        assert any(torch.equal(tensor, old) for old in before)
    assert all_equal(held, list(dropped.tensors(number // 2)))


def test_flags_move_finite_layers_as_they_would_without() -> None:
    for norm in NORMS:
        flagged, plain = make_case(norm), make_case(norm)
        hit = flagged.step(rules.Constant(), on_host=False)
        plain.step(rules.Constant(), on_host=None)
        assert not any(hit.values())
        for ours, theirs in zip(flagged.tensors(), plain.tensors(), strict=True):
            torch.testing.assert_close(ours, theirs)


@given(
    entries=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=12),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
@settings(derandomize=True, deadline=None)
def test_a_layer_is_hit_exactly_if_an_entry_is_not_finite(
    entries: list[float], dtype: torch.dtype
) -> None:
    member = Member("w", torch.zeros(len(entries), dtype=dtype))
    member.norm = norms.Euclidean()
    member.parameter.grad = torch.tensor(entries).to(dtype)
    is_finite = bool(torch.isfinite(member.parameter.grad).all())
    kept, _, hit = screen([member], on_host=True)
    assert (len(kept), len(hit)) == ((1, 0) if is_finite else (0, 1))
    _, finite, hit = screen([member], on_host=False)
    assert finite is not None
    assert bool(finite[0]) == is_finite
    assert int(hit[0]) == (not is_finite)
