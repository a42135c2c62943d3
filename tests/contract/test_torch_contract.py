"""DropMuon under the generic checks that PyTorch has for its own optimizers.

`INFO` is the table of what DropMuon can do, in the form that PyTorch's test suite has for every
optimizer. The tests below check the facts that test/test_optim.py of PyTorch checks, over all
configurations of the table.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import lr_scheduler, swa_utils
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_optimizers import (
        ErrorOptimizerInput,
        OptimizerErrorEnum,
        OptimizerInfo,
        OptimizerInput,
        get_error_inputs_for_all_optims,
    )

from dropmuon import DropMuon, rules, samplers


def inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    """Configurations of DropMuon, each for any number of layers."""
    settings: dict[str, dict[str, Any]] = {
        "default": {},
        "lr": {"lr": 0.01},
        "tensor lr": {"lr": torch.tensor(0.05, dtype=torch.float64)},
        "momentum": {"momentum": 0.9},
        "no momentum": {"momentum": 0.0},
        "nesterov": {"momentum": 0.9, "nesterov": True},
        "weight decay": {"weight_decay": 0.1},
        "maximize": {"maximize": True},
        "maximize, weight decay": {"maximize": True, "weight_decay": 0.1},
        "zero start": {"momentum_start": "zero"},
        "every layer": {"sampler": "full"},
        "one layer": {"sampler": samplers.Serial()},
        "epoch shift": {"sampler": "epoch-shift", "total_steps": 30},
        "windows": {"resample_every": 3},
        "no truncation": {"truncate": False},
        "sampled start": {"full_start": False},
        "svd": {"orthogonalize": "svd"},
        "polar express": {"orthogonalize": "polar-express"},
        "scion": {"policy": "scion", "lr": 0.05},
        "sign": {"policy": "sign", "lr": 0.02},
        "euclidean": {"policy": "euclidean"},
        "sharp": {"policy": "euclidean", "step_rule": rules.Sharp(), "lr": 0.005},
        "horizon": {"step_rule": rules.Horizon(20), "lr": 1.0},
    }
    return [OptimizerInput(params=None, kwargs=kw, desc=name) for name, kw in settings.items()]


def error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    """What every torch optimizer refuses, and what DropMuon refuses beside."""

    def matrix() -> list[Parameter]:
        return [Parameter(torch.randn(2, 3, device=device, dtype=dtype))]

    own = [
        (matrix(), {"lr": -1.0}, ValueError, "lr must be a finite number of at least 0, got -1.0"),
        (matrix(), {"momentum": 1.0}, ValueError, r"momentum must be in \[0, 1\), got 1.0"),
        (matrix(), {"weight_decay": -0.5}, ValueError, "weight_decay must be .* got -0.5"),
        (matrix(), {"sampler": "unifrm"}, ValueError, "did you mean 'uniform'"),
        ([torch.zeros(2, dtype=torch.cfloat)], {}, ValueError, "is complex"),
        ([torch.zeros(2, dtype=torch.long)], {}, ValueError, "only floats can move"),
    ]
    found = [
        ErrorOptimizerInput(
            OptimizerInput(params=params, kwargs=kwargs, desc=regex),
            error_type=kind,
            error_regex=regex,
        )
        for params, kwargs, kind, regex in own
    ]
    sparse = Parameter(torch.zeros(3, 2, device=device, dtype=dtype))
    sparse.grad = torch.sparse_coo_tensor(
        [[0]], torch.ones(1, 2, dtype=dtype), (3, 2), check_invariants=True
    )
    refused_at_step = ErrorOptimizerInput(
        OptimizerInput(params=[sparse], kwargs={}, desc="sparse gradient"),
        error_on=OptimizerErrorEnum.STEP_ERROR,
        error_type=RuntimeError,
        error_regex="sparse=False",
    )
    return [*get_error_inputs_for_all_optims(device, dtype), *found, refused_at_step]


INFO = OptimizerInfo(
    DropMuon,
    optim_inputs_func=inputs,
    optim_error_inputs_func=error_inputs,
    scheduler_inputs=(
        [lambda opt: lr_scheduler.StepLR(opt, gamma=0.9, step_size=10)],
        [lr_scheduler.ReduceLROnPlateau],
        [
            lambda opt: lr_scheduler.StepLR(opt, gamma=0.99, step_size=10),
            lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.99),
            lr_scheduler.ReduceLROnPlateau,
        ],
    ),
    supported_impls=("foreach",),
    not_og_supported_flags=("foreach", "maximize", "nesterov", "momentum_start"),
    supports_sparse=False,
    supports_complex=False,
)

CONFIGURATIONS = INFO.optim_inputs_func("cpu")
ERRORS = INFO.optim_error_inputs_func("cpu", torch.float32)

pytestmark = pytest.mark.filterwarnings("ignore:policy .scion. treats embeddings differently")

configurations = pytest.mark.parametrize("given", CONFIGURATIONS, ids=lambda given: given.desc)
contiguity = pytest.mark.parametrize("contiguous", [True, False], ids=["dense", "strided"])
implementation = pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "for-loop"])

# Torch's sentence, where ours says the same in other words.
SAID_OTHERWISE = {
    "invalid param type": "params must be a model or an iterable of parameters, got a Parameter",
    "Tensor lr must be 1-element": "lr as a tensor must have one element",
}


def problem(
    contiguous: bool = True, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[list[Parameter], Callable[[], Tensor]]:
    """A matrix and a bias that are to map a vector to zero, and the loss of it."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        if contiguous:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randn((*shape, 2), generator=generator).to(dtype)[..., 0]

    weight, bias = Parameter(random(10, 5)), Parameter(random(10))
    x = torch.randn(5, generator=generator).to(dtype)
    return [weight, bias], lambda: (weight.mv(x) + bias).square().sum()


def build(params: Any, given: OptimizerInput, **kwargs: Any) -> DropMuon:
    return INFO.optim_cls(params, **{**copy.deepcopy(given.kwargs), **kwargs})


def descend(
    optimizer: DropMuon,
    loss: Callable[[], Tensor],
    steps: int,
    schedulers: Iterable[Any] = (),
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        for scheduler in schedulers:
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(value.detach())
            else:
                scheduler.step()


def assert_equal(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def assert_same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Two state dicts hold the same, to the bit."""
    assert set(ours) == set(theirs)
    assert ours["dropmuon"] == theirs["dropmuon"]
    assert ours["param_groups"] == theirs["param_groups"]
    assert list(ours["state"]) == list(theirs["state"])
    for index, state in ours["state"].items():
        assert_equal(state, theirs["state"][index])


def snapshot(params: Iterable[Tensor]) -> list[Tensor]:
    return [param.detach().clone() for param in params]


# The table


def test_the_table_leaves_implementations_to_the_tests() -> None:
    for given in CONFIGURATIONS:
        assert not {"foreach", "fused", "differentiable"} & set(given.kwargs)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.optimizer_error_input.desc)
def test_what_cannot_work_is_refused(error: ErrorOptimizerInput) -> None:
    given = error.optimizer_error_input
    params = problem()[0] if given.params is None else given.params
    regex = SAID_OTHERWISE.get(given.desc, error.error_regex)
    if error.error_on is OptimizerErrorEnum.STEP_ERROR:
        optimizer = DropMuon(params, **given.kwargs)
        with pytest.raises(error.error_type, match=regex):
            optimizer.step()
    elif issubclass(error.error_type, Warning):
        with pytest.warns(error.error_type, match=regex):
            DropMuon(params, **given.kwargs)
    else:
        with pytest.raises(error.error_type, match=regex):
            DropMuon(params, **given.kwargs)


@configurations
def test_it_can_be_printed(given: OptimizerInput) -> None:
    optimizer = build(problem()[0], given)
    assert "DropMuon" in str(optimizer)
    assert repr(optimizer).startswith("DropMuon")


# The right direction


@configurations
@contiguity
@implementation
def test_it_goes_the_right_direction(
    given: OptimizerInput, contiguous: bool, foreach: bool
) -> None:
    params, loss = problem(contiguous)
    optimizer = build(params, given, foreach=foreach)
    start = loss().item()
    descend(optimizer, loss, 20)
    end = loss().item()
    assert end > start if given.kwargs.get("maximize") else end < start


@configurations
@pytest.mark.parametrize("makers", INFO.scheduler_inputs, ids=["step", "plateau", "chain"])
@implementation
def test_it_goes_the_right_direction_under_schedulers(
    given: OptimizerInput, makers: list[Callable[[DropMuon], Any]], foreach: bool
) -> None:
    params, loss = problem()
    optimizer = build(params, given, foreach=foreach)
    start = loss().item()
    descend(optimizer, loss, 20, [make(optimizer) for make in makers])
    end = loss().item()
    assert end > start if given.kwargs.get("maximize") else end < start


@pytest.mark.parametrize("makers", INFO.scheduler_inputs, ids=["step", "plateau", "chain"])
@implementation
def test_groups_with_a_rate_of_their_own_go_the_right_direction_under_schedulers(
    makers: list[Callable[[DropMuon], Any]], foreach: bool
) -> None:
    (weight, bias), loss = problem()
    groups = [{"params": [weight]}, {"params": [bias], "lr": 0.01}]
    optimizer = DropMuon(groups, lr=0.1, foreach=foreach)
    start = loss().item()
    descend(optimizer, loss, 20, [make(optimizer) for make in makers])
    assert loss().item() < start


@configurations
def test_foreach_equals_for_loop(given: OptimizerInput) -> None:
    ends = []
    for foreach in (True, False):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(s, dtype=torch.float64)) for s in [(4, 3), (3,), (4, 3)]]
        x = torch.randn(3, dtype=torch.float64)
        optimizer = build(params, given, foreach=foreach)
        a, b, c = params
        descend(optimizer, lambda x=x, a=a, b=b, c=c: ((a + c) @ (x + b)).square().sum(), 8)
        ends.append((snapshot(params), optimizer.state_dict()["state"]))
    torch.testing.assert_close(ends[0], ends[1])


@configurations
def test_non_contiguous_parameters_move_as_contiguous_ones(given: OptimizerInput) -> None:
    dense, loss = problem(dtype=torch.float64)
    optimizer = build(dense, given)
    strided = [Parameter(torch.stack([p.detach(), p.detach()], -1)[..., 0]) for p in dense]
    assert not any(param.is_contiguous() for param in strided)
    other = build(strided, given)
    for _ in range(5):
        optimizer.zero_grad()
        loss().backward()
        for ours, theirs in zip(strided, dense, strict=True):
            ours.grad = None if theirs.grad is None else theirs.grad.clone()
        optimizer.step()
        other.step()
    torch.testing.assert_close(snapshot(strided), snapshot(dense))


# Groups, learning rates and other settings


def test_a_group_without_a_rate_has_the_default() -> None:
    first, second, third = (Parameter(torch.ones(2, 2)) for _ in range(3))
    groups = [{"params": [first], "lr": 0.5}, {"params": [second]}, {"params": [third], "lr": 0.0}]
    optimizer = DropMuon(groups, lr=0.25, policy="sign", sampler="full")
    for param in (first, second, third):
        param.grad = torch.ones(2, 2)
    optimizer.step()
    assert_equal(first.detach(), torch.full((2, 2), 0.5))
    assert_equal(second.detach(), torch.full((2, 2), 0.75))
    assert_equal(third.detach(), torch.ones(2, 2))


@implementation
def test_weight_decay_is_that_of_the_group(foreach: bool) -> None:
    decayed, plain = Parameter(torch.ones(2, 2)), Parameter(torch.ones(2, 2))
    groups = [{"params": [decayed], "weight_decay": 0.5}, {"params": [plain]}]
    optimizer = DropMuon(groups, lr=0.5, foreach=foreach)
    for param in (decayed, plain):
        param.grad = torch.zeros(2, 2)
    optimizer.step()
    assert_equal(decayed.detach(), torch.full((2, 2), 0.75))
    assert_equal(plain.detach(), torch.ones(2, 2))


def test_every_setting_of_a_group_is_its_own() -> None:
    params = [Parameter(torch.zeros(2)) for _ in range(5)]
    own = [
        {},
        {"momentum": 0.0},
        {"maximize": True},
        {"momentum_start": "zero"},
        {"nesterov": True},
    ]
    groups = [{"params": [p], **setting} for p, setting in zip(params, own, strict=True)]
    optimizer = DropMuon(
        groups, lr=1.0, momentum=0.5, sampler="full", policy="euclidean", step_rule=rules.Sharp()
    )
    for gradient in (1.0, 3.0):
        for param in params:
            param.grad = torch.full((2,), gradient)
        optimizer.step()
    wanted = [-1.0 - 2.0, -1.0 - 3.0, 1.0 + 2.0, -0.5 - 1.75, -1.0 - 2.5]
    torch.testing.assert_close([p.detach()[0].item() for p in params], wanted)


@configurations
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_rate_as_a_tensor_is_a_rate(given: OptimizerInput, shape: tuple[int, ...]) -> None:
    ends = []
    for make in (float, lambda rate: torch.full(shape, rate, dtype=torch.float64)):
        params, loss = problem()
        optimizer = build(params, given, lr=make(0.03))
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
        descend(optimizer, loss, 5, [schedule])
        ends.append(snapshot(params))
    torch.testing.assert_close(ends[0], ends[1])


def test_changed_defaults_hold_for_groups_added_later() -> None:
    optimizer = DropMuon([Parameter(torch.ones(2, 2))], lr=0.1)
    optimizer.defaults.update(lr=0.7, foreach=False, weight_decay=0.2)
    optimizer.add_param_group({"params": [Parameter(torch.ones(3, 2))]})
    first, second = optimizer.param_groups
    assert (first["lr"], first["foreach"], first["weight_decay"]) == (0.1, True, 0.0)
    assert (second["lr"], second["foreach"], second["weight_decay"]) == (0.7, False, 0.2)


def test_an_added_group_joins_the_training() -> None:
    params, loss = problem()
    extra = Parameter(torch.ones(10))
    optimizer = DropMuon(params, lr=0.05)
    descend(optimizer, loss, 3)
    optimizer.add_param_group({"params": [extra], "lr": 0.01})
    assert optimizer.active == (0, 1, 2)
    before = extra.detach().clone()
    descend(optimizer, lambda: loss() + extra.square().sum(), 3)
    assert not torch.equal(extra, before)
    assert all(param.requires_grad or i not in optimizer.active for i, param in enumerate(params))


@pytest.mark.parametrize("with_groups", [True, False])
def test_a_parameter_may_not_be_in_two_groups(with_groups: bool) -> None:
    param = Parameter(torch.ones(2, 2))
    if with_groups:
        with pytest.raises(ValueError, match="some parameters appear in more than one"):
            DropMuon([{"params": [param]}, {"params": [param]}])
    else:
        with pytest.warns(UserWarning, match="a parameter group with duplicate parameters"):
            DropMuon([param, param])


def test_a_group_that_cannot_be_added_leaves_the_optimizer_as_it_was() -> None:
    params, loss = problem()
    twins, twin_loss = problem()
    optimizer, untouched = DropMuon(params, lr=0.05), DropMuon(twins, lr=0.05)
    for bad in (
        {"params": [params[0]]},
        {"params": [Parameter(torch.ones(2))], "lr": -1.0},
        {"params": [Parameter(torch.ones(2))], "norm": "spectrel"},
        {"params": [torch.zeros(2, dtype=torch.long)]},
    ):
        with pytest.raises(ValueError, match=r"more than one|lr must|spectral|only floats"):
            optimizer.add_param_group(bad)
    descend(optimizer, loss, 5)
    descend(untouched, twin_loss, 5)
    assert_same_state(optimizer.state_dict(), untouched.state_dict())
    assert_equal(snapshot(params), snapshot(twins))


# When nothing is to be done


@configurations
def test_a_step_without_gradients_is_no_step(given: OptimizerInput) -> None:
    params = [torch.randn(2, 3), torch.randn(3)]  # not one of them wants a gradient
    before = snapshot(params)
    optimizer = build(params, given)
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.warns(UserWarning, match="no gradient"):
        optimizer.step()
    for _ in range(3):
        optimizer.step()  # warnings are errors here
    assert_equal(snapshot(params), before)
    assert_same_state(optimizer.state_dict(), state)


@configurations
@implementation
def test_zero_gradients_move_nothing(given: OptimizerInput, foreach: bool) -> None:
    params, _ = problem()
    before = snapshot(params)
    optimizer = build(params, given, foreach=foreach, weight_decay=0.0)
    for _ in range(3):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert_equal(snapshot(params), before)


@configurations
@implementation
def test_empty_parameters_are_no_trouble(given: OptimizerInput, foreach: bool) -> None:
    empty, vector, full = (Parameter(torch.ones(s)) for s in [(0, 3), (0,), (2, 3)])
    optimizer = build([empty, vector, full], given, foreach=foreach, sampler="full")
    for _ in range(3):
        for param in (empty, vector, full):
            param.grad = torch.ones_like(param)
        optimizer.step()
    assert torch.isfinite(full).all()
    assert not torch.equal(full, torch.ones(2, 3))
    assert optimizer.skipped == {}


def test_an_all_empty_model_is_no_trouble() -> None:
    param = Parameter(torch.ones(0, 3))
    optimizer = DropMuon([param])
    param.grad = torch.ones(0, 3)
    optimizer.step()


@implementation
def test_parameters_of_several_types_move_as_each_type_does_alone(foreach: bool) -> None:
    types = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    starts = [torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(t) for t in types]
    together = [Parameter(start.clone()) for start in starts]
    optimizer = DropMuon(together, lr=0.1, sampler="full", foreach=foreach)
    alone = [Parameter(start.clone()) for start in starts]
    singles = [DropMuon([param], lr=0.1, foreach=foreach) for param in alone]
    for step in range(3):
        for param in (*together, *alone):
            seeded = torch.Generator().manual_seed(step)
            param.grad = torch.randn(4, 3, generator=seeded).to(param.dtype)
        for each in (optimizer, *singles):
            each.step()
    assert_equal(snapshot(together), snapshot(alone))
    for param in together:
        assert optimizer.state[param]["momentum_buffer"].dtype == param.dtype


# States


@configurations
def test_equal_runs_have_equal_states(given: OptimizerInput) -> None:
    states = []
    for _ in range(2):
        params, loss = problem()
        optimizer = build(params, given)
        descend(optimizer, loss, 5)
        states.append(optimizer.state_dict())
    assert_same_state(*states)


@configurations
def test_a_state_loaded_into_a_fresh_optimizer_goes_on_alike(given: OptimizerInput) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 7)
    state = copy.deepcopy(optimizer.state_dict())
    twins, twin_loss = problem()
    with torch.no_grad():
        for ours, theirs in zip(twins, params, strict=True):
            ours.copy_(theirs)
    fresh = build(twins, given)
    fresh.load_state_dict(copy.deepcopy(state))
    for _ in range(7):
        assert fresh.active == optimizer.active
        descend(optimizer, loss, 1)
        descend(fresh, twin_loss, 1)
        assert_equal(snapshot(twins), snapshot(params))


@configurations
def test_states_of_before_a_setting_existed_can_be_loaded(given: OptimizerInput) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 3)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        for flag in INFO.not_og_supported_flags:
            del group[flag]
    optimizer.load_state_dict(state)
    for flag in INFO.not_og_supported_flags:
        assert optimizer.param_groups[0][flag] == optimizer.defaults[flag]
    descend(optimizer, loss, 3)


@pytest.mark.parametrize("named_first", [True, False])
def test_named_and_unnamed_states_fit_each_other_where_layers_do(named_first: bool) -> None:
    def make(named: bool) -> tuple[DropMuon, list[Parameter], Callable[[], Tensor]]:
        params, loss = problem()
        groups = [
            {"params": [(f"name{i}", p)] if named else [p], "layer": i}
            for i, p in enumerate(params)
        ]
        return DropMuon(groups, lr=0.05), params, loss

    one, params, loss = make(named_first)
    descend(one, loss, 3)
    other, others, other_loss = make(not named_first)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    with torch.no_grad():
        for ours, theirs in zip(others, params, strict=True):
            ours.copy_(theirs)
    descend(one, loss, 3)
    descend(other, other_loss, 3)
    assert_equal(snapshot(others), snapshot(params))


def test_names_are_kept_in_groups_and_states() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    for params in (model, list(model.named_parameters())):
        optimizer = DropMuon(params)
        names = [name for group in optimizer.param_groups for name in group["param_names"]]
        assert sorted(names) == ["0.bias", "0.weight", "1.bias", "1.weight"]
        saved = [n for g in optimizer.state_dict()["param_groups"] for n in g["param_names"]]
        assert saved == names
        assert optimizer.layers == ("0", "1")


@configurations
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_saved_state_is_read_back_equal(given: OptimizerInput, weights_only: bool) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 5)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert_same_state(torch.load(file, weights_only=weights_only), optimizer.state_dict())


@pytest.mark.parametrize("policy", ["spectral", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_loading_brings_the_state_to_the_parameters_type(policy: str, dtype: torch.dtype) -> None:
    def make(dtype: torch.dtype) -> tuple[DropMuon, Callable[[], Tensor], list[Parameter]]:
        params, loss = problem(dtype=dtype)
        return DropMuon([{"params": params, "norm": policy}], lr=0.01), loss, params

    optimizer, loss, params = make(torch.float32)
    descend(optimizer, loss, 3)
    other, other_loss, others = make(dtype)
    other.load_state_dict(optimizer.state_dict())
    for ours, theirs in zip(others, params, strict=True):
        assert ours.dtype == dtype
        for key, value in other.state[ours].items():
            old = optimizer.state[theirs][key]
            if isinstance(value, Tensor) and value.ndim:
                assert value.dtype == dtype
                assert_equal(value, old.to(dtype))
            else:
                assert value == old
    descend(other, other_loss, 3)
    assert all(torch.isfinite(param).all() for param in others)


@configurations
def test_state_exists_for_every_parameter_after_the_first_step(given: OptimizerInput) -> None:
    params, loss = problem()
    optimizer = build(params, given, full_start=True)
    descend(optimizer, loss, 1)
    assert all(optimizer.state[param] for param in params)


# Hooks


def test_step_hooks_run_around_the_step_in_order() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    seen: list[str] = []

    def note(word: str) -> Callable[..., None]:
        def hook(opt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert opt is optimizer
            seen.append(word)

        return hook

    handles = [
        register_optimizer_step_pre_hook(note("global before")),
        register_optimizer_step_post_hook(note("global after")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    try:
        loss().backward()
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["global before", "before", "after", "global after"]
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    assert len(seen) == 4


def test_a_pre_hook_sees_the_set_that_moves_and_a_post_hook_the_next() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    before, after = [], []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: before.append(opt.active))
    optimizer.register_step_post_hook(lambda opt, args, kwargs: after.append(opt.active))
    descend(optimizer, loss, 6)
    assert before[0] == (0, 1)
    assert before[1:] == after[:-1]


def test_a_pre_hook_can_give_the_step_its_closure() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)

    def closure() -> Tensor:
        value = loss()
        value.backward()
        return value

    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((opt, closure), kwargs))
    assert optimizer.step().item() == problem()[1]().item()


def test_state_dict_hooks_run_around_it() -> None:
    optimizer = DropMuon(problem()[0], lr=0.05)

    def before(opt: DropMuon) -> None:
        opt.param_groups[0]["lr"] = 0.7

    def after(opt: DropMuon, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "note": opt.layers}

    optimizer.register_state_dict_pre_hook(before)
    optimizer.register_state_dict_post_hook(after)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.7
    assert state["note"] == optimizer.layers
    assert set(state) == {"state", "param_groups", "dropmuon", "note"}


def test_state_dict_hooks_can_be_prepended() -> None:
    optimizer = DropMuon(problem()[0])
    seen: list[int] = []
    optimizer.register_state_dict_pre_hook(lambda opt: seen.append(1))
    optimizer.register_state_dict_pre_hook(lambda opt: seen.append(0), prepend=True)
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append(3))
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append(2), prepend=True)
    optimizer.state_dict()
    assert seen == [0, 1, 2, 3]


def test_a_state_dict_post_hook_sees_all_that_is_saved() -> None:
    optimizer = DropMuon(problem()[0])
    seen: list[set[str]] = []
    optimizer.register_state_dict_post_hook(lambda opt, state: seen.append(set(state)))
    state = optimizer.state_dict()
    assert seen == [set(state)]


def test_load_hooks_run_around_loading_and_can_be_prepended() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    descend(optimizer, loss, 2)
    state = optimizer.state_dict()
    seen: list[str] = []

    def rate(value: float) -> Callable[..., None]:
        def hook(opt: DropMuon, state: dict[str, Any]) -> None:
            state["param_groups"][0]["lr"] = value
            seen.append(f"lr {value}")

        return hook

    optimizer.register_load_state_dict_pre_hook(rate(0.2))
    optimizer.register_load_state_dict_pre_hook(rate(0.1), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append("loaded"))
    optimizer.load_state_dict(state)
    assert seen == ["lr 0.1", "lr 0.2", "loaded"]
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_a_load_post_hook_finds_the_whole_state_loaded() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial(), seed=1)
    descend(optimizer, loss, 4)
    fresh = DropMuon(problem()[0], lr=0.05, sampler=samplers.Serial(), seed=2)
    seen = []
    fresh.register_load_state_dict_post_hook(lambda opt: seen.append((opt.active, opt.draws.seed)))
    fresh.load_state_dict(optimizer.state_dict())
    assert seen == [(optimizer.active, 1)]


def test_a_load_pre_hook_can_make_a_state_fit() -> None:
    params, loss = problem()
    optimizer = DropMuon([("old.weight", params[0]), ("old2.bias", params[1])], lr=0.05)
    descend(optimizer, loss, 2)
    renamed, _ = problem()
    fresh = DropMuon([("new.weight", renamed[0]), ("new2.bias", renamed[1])], lr=0.05)

    def rename(opt: DropMuon, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "dropmuon": {**state["dropmuon"], "layers": list(opt.layers)}}

    fresh.register_load_state_dict_pre_hook(rename)
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.active == optimizer.active


def test_steps_and_zero_grad_have_names_in_a_profile() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.profiler.profile() as profile:
            descend(optimizer, loss, 1)
        names = {event.name for event in profile.function_events}
    assert {"Optimizer.step#DropMuon.step", "Optimizer.zero_grad#DropMuon.zero_grad"} <= names


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_inactive_layers_too(set_to_none: bool) -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    loss().backward()
    optimizer.step()
    assert len(optimizer.active) == 1
    optimizer.zero_grad(set_to_none=set_to_none)
    for param in params:
        assert param.grad is None if set_to_none else not param.grad.any()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_is_the_same_however_gradients_are_cleared(set_to_none: bool) -> None:
    ends = []
    for clear in (True, set_to_none):
        params, loss = problem()
        optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
        for _ in range(8):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=clear)
        ends.append(snapshot(params))
    assert_equal(*ends)


# Copies

COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda whole: pickle.loads(pickle.dumps(whole)),
}


@configurations
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_complete_and_trains_alike(given: OptimizerInput, how: str) -> None:
    params, loss = problem()
    optimizer = build(params, given)
    descend(optimizer, loss, 3)
    twin = COPIES[how](optimizer)

    def public(opt: DropMuon) -> set[str]:
        return {name for name in vars(opt) if not name.startswith("_")}

    assert public(twin) == public(optimizer)
    assert_same_state(twin.state_dict(), optimizer.state_dict())
    assert str(twin) == str(optimizer)
    twins = [param for group in twin.param_groups for param in group["params"]]
    assert not {id(param) for param in twins} & {id(param) for param in params}
    for step in range(6):
        assert twin.active == optimizer.active
        flags = [param.requires_grad for param in params]
        assert [param.requires_grad for param in twins] == flags
        for ours, theirs in zip(twins, params, strict=True):
            gradient = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(step))
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        twin.step()
        assert_equal(snapshot(twins), snapshot(params))


@pytest.mark.parametrize("how", COPIES)
def test_a_model_copied_with_its_optimizer_stays_with_it(how: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    descend(optimizer, lambda: model(torch.ones(2, 3)).square().sum(), 2)
    other, twin = COPIES[how]((model, optimizer))
    flags = [param.requires_grad for param in model.parameters()]
    before = snapshot(other.parameters())
    descend(twin, lambda: other(torch.ones(2, 3)).square().sum(), 8)
    assert not any(map(torch.equal, snapshot(other.parameters()), before))
    assert [layer.weight.requires_grad for layer in other] == [i in twin.active for i in range(2)]
    assert [param.requires_grad for param in model.parameters()] == flags


def test_a_model_copied_inside_full_is_trainable_as_a_whole() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = DropMuon(model, lr=0.1, sampler=samplers.Serial())
    descend(optimizer, lambda: model(torch.ones(2, 3)).square().sum(), 2)
    with optimizer.full():
        other = copy.deepcopy(model)
    assert DropMuon(other).layers == ("0", "1")


# Closures


def test_a_closure_is_called_once_with_gradients_enabled_and_its_loss_returned() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    calls: list[bool] = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    start = loss().item()
    with torch.no_grad():
        assert optimizer.step(closure).item() == start
    assert calls == [True]
    assert optimizer.step(closure) < start


def test_a_step_without_a_closure_returns_none() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05)
    loss().backward()
    assert optimizer.step() is None


def test_a_step_leaves_no_trace_in_the_graph() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler="full")
    descend(optimizer, loss, 2)
    assert torch.is_grad_enabled()
    assert all(param.is_leaf and param.grad_fn is None for param in params)
    for state in optimizer.state.values():
        assert not any(v.requires_grad for v in state.values() if isinstance(v, Tensor))


# Schedulers and what else goes with an optimizer

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 3),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [2, 5]),
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 1 / (step + 1)),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=6),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 8),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=12),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=3),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 10),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt,
        [lr_scheduler.ConstantLR(opt, 0.1, 4), lr_scheduler.ExponentialLR(opt, 0.9)],
        milestones=[4],
    ),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt, 0.1, 4), lr_scheduler.ExponentialLR(opt, 0.9)]
    ),
    "SWALR": lambda opt: swa_utils.SWALR(opt, 0.01, anneal_epochs=5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_rates_and_momentum_as_they_do_for_sgd(name: str) -> None:
    curves = []
    for make in (DropMuon, torch.optim.SGD):
        params, loss = problem()
        optimizer = make(params, lr=0.05, momentum=0.5)
        scheduler = SCHEDULERS[name](optimizer)
        curve = []
        for _ in range(10):
            curve.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
            descend(optimizer, loss, 1, [scheduler])
        curves.append(curve)
    assert curves[0] == curves[1]
    assert len(set(curves[0])) > 1


def test_a_plateau_lowers_the_rate() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.5)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
    for metric in (1.0, 1.0, 1.0):
        descend(optimizer, loss, 1)
        scheduler.step(metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_scheduled_rate_is_the_length_of_the_step() -> None:
    param = Parameter(torch.zeros(2, 2))
    optimizer = DropMuon([param], lr=0.8, policy="sign")
    scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    lengths = []
    for _ in range(4):
        before = param.detach().clone()
        param.grad = torch.ones(2, 2)
        optimizer.step()
        scheduler.step()
        lengths.append(float((before - param.detach()).max()))
    torch.testing.assert_close(lengths, [0.8, 0.4, 0.2, 0.1])


def test_averaged_models_average_what_was_trained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = [torch.randn(5, 3) for _ in range(6)]
    optimizer = DropMuon(model, lr=0.1)
    averaged = swa_utils.AveragedModel(model)
    scheduler = swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
    seen = []
    for x in data:
        descend(optimizer, lambda x=x: model(x).square().sum(), 1, [scheduler])
        averaged.update_parameters(model)
        seen.append(snapshot(model.parameters()))
    means = [torch.stack(values).mean(0) for values in zip(*seen, strict=True)]
    torch.testing.assert_close(snapshot(averaged.module.parameters()), means)
    swa_utils.update_bn(data, averaged)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    assert torch.isfinite(averaged(data[0])).all()


def test_a_step_that_a_grad_scaler_leaves_out_is_no_step() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(6):
        optimizer.zero_grad()
        active = optimizer.active
        before = snapshot(params)
        scaler.scale(loss()).backward()
        if step == 3:
            params[active[0]].grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        moved = [not torch.equal(p, b) for p, b in zip(params, before, strict=True)]
        assert moved == [step != 3 and i in active for i in range(2)]
        if step == 3:
            assert optimizer.active == active
    assert optimizer.skipped == {}


def test_clipped_gradients_are_gradients() -> None:
    params, loss = problem()
    optimizer = DropMuon(params, lr=0.05, sampler=samplers.Serial())
    start = loss().item()
    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    assert loss().item() < start
