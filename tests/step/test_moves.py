"""A NaN or infinite gradient holds its layer still, bit for bit, and nothing waits for a device."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dropmuon import DropMuon, norms, rules, samplers
from dropmuon.model.policies import PolicyName
from dropmuon.model.roster import Member
from dropmuon.step.moves import new_state, screen, take_step
from tests.models import gradient

BAD = [math.nan, math.inf, -math.inf]
POLICIES = ["spectral", "muon", "scion", "euclidean", "sign"]
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


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def set_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)


def everything(model: nn.Sequential, optimizer: DropMuon, layer: int) -> list[Tensor]:
    """All tensors of a layer: parameters, momentum, moments."""
    found = []
    for parameter in model[layer].parameters():
        found.append(parameter.detach())
        state = optimizer.state.get(parameter, {})
        found += [value for value in state.values() if isinstance(value, Tensor)]
    return [tensor.clone() for tensor in found]


def same_bits(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("value", BAD)
def test_a_bad_entry_holds_its_layer_and_no_other(value: float, policy: PolicyName) -> None:
    for layer in range(4):
        model, clean = make_model(), make_model()
        settings: dict[str, Any] = {
            "lr": 0.1,
            "weight_decay": 0.1,
            "sampler": "full",
            "policy": policy,
        }
        optimizer, unharmed = DropMuon(model, **settings), DropMuon(clean, **settings)
        for step in range(2):
            set_gradients(model, step)
            set_gradients(clean, step)
            optimizer.step()
            unharmed.step()
        before = everything(model, optimizer, layer)
        set_gradients(model, 2)
        set_gradients(clean, 2)
        list(model[layer].parameters())[-1].grad.view(-1)[-1] = value
        optimizer.step()
        unharmed.step()
        assert same_bits(everything(model, optimizer, layer), before)
        for other in {0, 1, 2, 3} - {layer}:
            moved = everything(clean, unharmed, other)
            assert same_bits(everything(model, optimizer, other), moved)
        assert not same_bits(everything(clean, unharmed, layer), before)
        assert optimizer.skipped == {str(layer): 1}
        assert optimizer.state_dict()["dropmuon"]["skipped"] == {str(layer): 1}
        assert unharmed.skipped == {}


def test_a_layer_that_was_held_moves_on_as_if_the_step_had_not_been() -> None:
    model, clean = make_model(), make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full")
    unharmed = DropMuon(clean, lr=0.1, sampler="full")
    for step in range(6):
        set_gradients(model, step)
        set_gradients(clean, step)
        if step in {2, 3}:
            model[1].weight.grad[0, 0] = math.nan
            for parameter in clean[1].parameters():
                parameter.grad = None
        optimizer.step()
        unharmed.step()
    for layer in range(4):
        assert same_bits(everything(model, optimizer, layer), everything(clean, unharmed, layer))
    assert optimizer.skipped == {"1": 2}


def test_only_active_layers_are_looked_at() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial(), truncate=False, seed=1)
    set_gradients(model, 0)
    optimizer.step()
    (active,) = optimizer.active
    set_gradients(model, 1)
    for layer in {0, 1, 2, 3} - {active}:
        model[layer].weight.grad.fill_(math.nan)
    weight = model[active].get_parameter("weight")
    before = weight.detach().clone()
    optimizer.step()
    assert not torch.equal(weight, before)
    assert optimizer.skipped == {}


def test_the_step_counts_even_if_every_layer_was_held() -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full")
    before = copy.deepcopy(model.state_dict())
    set_gradients(model, 0)
    for parameter in model.parameters():
        parameter.grad.fill_(math.inf)
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.skipped == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert optimizer.state_dict()["dropmuon"]["steps"] == 1


@pytest.mark.parametrize("value", BAD)
def test_a_layer_with_a_bad_first_gradient_starts_at_its_next_finite_one(value: float) -> None:
    model, late = make_model(), make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full")
    start = everything(model, optimizer, 1)
    for step in range(2):
        set_gradients(model, step)
        model[1].bias.grad[2] = value
        optimizer.step()
        assert same_bits([p.detach() for p in model[1].parameters()], start)
    set_gradients(model, 2)
    optimizer.step()
    for parameter in model[1].parameters():
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], gradient(parameter))
    fresh = DropMuon(late, lr=0.1, sampler="full")
    set_gradients(late, 2)
    fresh.step()
    assert same_bits(everything(model, optimizer, 1), everything(late, fresh, 1))


@pytest.mark.parametrize("first", [True, False])
def test_error_if_nonfinite_names_the_layers_and_moves_nothing(first: bool) -> None:
    model = make_model()
    optimizer = DropMuon(model, lr=0.1, sampler="full", error_if_nonfinite=True)
    if not first:
        set_gradients(model, 0)
        optimizer.step()
    set_gradients(model, 1)
    model[1].weight.grad[0, 0] = math.nan
    model[3].bias.grad[0] = math.inf
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(RuntimeError, match=r"gradient of '1', '3' is not finite; nothing moved"):
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    after = optimizer.state_dict()
    assert after["dropmuon"] == state["dropmuon"]
    for index, saved in state["state"].items():
        assert torch.equal(saved["momentum_buffer"], after["state"][index]["momentum_buffer"])
        assert saved["updates"] == after["state"][index]["updates"]
    set_gradients(model, 2)
    optimizer.step()
    assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("dtype", "huge"),
    [
        (torch.float64, 1e300),
        (torch.float32, 1e30),
        (torch.float32, 3e38),
        (torch.bfloat16, 1e30),
        (torch.float16, 6e4),
    ],
)
def test_huge_finite_gradients_move_their_layers(
    dtype: torch.dtype, huge: float, policy: PolicyName
) -> None:
    if policy == "muon" and huge > torch.finfo(dtype).max ** 0.5:
        policy = "spectral"  # AdamW squares gradients, here as anywhere
    model = make_model().to(dtype)
    optimizer = DropMuon(model, lr=0.1, sampler="full", policy=policy)
    before = copy.deepcopy(model.state_dict())
    set_gradients(model, 0)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.sign() * huge
    for _ in range(2):
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = gradient(parameter) / 2
    assert optimizer.skipped == {}
    for name, value in model.state_dict().items():
        assert torch.isfinite(value).all(), name
        assert not torch.equal(before[name], value), name


@pytest.mark.parametrize("policy", ["spectral", "scion", "euclidean", "sign"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_huge_gradients_that_turn_around_leave_the_momentum_finite(
    dtype: torch.dtype, policy: PolicyName
) -> None:
    model = make_model().to(dtype)
    optimizer = DropMuon(model, lr=0.1, sampler="full", policy=policy)
    for sign in (1, -1):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.4 * sign * torch.finfo(dtype).max)
        optimizer.step()
    for state in optimizer.state.values():
        assert torch.isfinite(state["momentum_buffer"]).all()


# On a device: flags instead of waiting


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
    assert same_bits(held, list(dropped.tensors(number // 2)))


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
    member.parameter.grad = torch.tensor(entries).to(dtype)
    is_finite = bool(torch.isfinite(member.parameter.grad).all())
    kept, _, hit = screen([member], on_host=True)
    assert (len(kept), len(hit)) == ((1, 0) if is_finite else (0, 1))
    _, finite, hit = screen([member], on_host=False)
    assert finite is not None
    assert bool(finite[0]) == is_finite
    assert int(hit[0]) == (not is_finite)
