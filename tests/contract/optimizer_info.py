"""What DropMuon can do, as the table that PyTorch's test suite has for every optimizer.

The tests beside this file check the facts that test/test_optim.py of PyTorch checks, over all
configurations of the table.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer, lr_scheduler

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

__all__ = [
    "CONFIGURATIONS",
    "ERRORS",
    "INFO",
    "SAID_OTHERWISE",
    "ErrorOptimizerInput",
    "OptimizerErrorEnum",
    "OptimizerInput",
    "assert_equal",
    "assert_same_state",
    "build",
    "configurations",
    "contiguity",
    "descend",
    "implementation",
    "problem",
    "snapshot",
]


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
        "refresh": {"truncate": "refresh"},
        "started momentum": {"full_start": "momentum"},
        "sampled start": {"full_start": False},
        "svd": {"orthogonalize": "svd"},
        "polar express": {"orthogonalize": "polar-express"},
        "scion": {"policy": "scion", "lr": 0.05},
        "sign": {"policy": "sign", "lr": 0.02},
        "euclidean": {"policy": "euclidean"},
        "sharp": {"policy": "euclidean", "step_rule": rules.Sharp(), "lr": 0.005},
        "horizon": {"step_rule": rules.Horizon(20), "lr": 1.0},
    }
    unknown: Any = None  # each test brings its own parameters
    return [OptimizerInput(unknown, kwargs=kw, desc=name) for name, kw in settings.items()]


def error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    """What every torch optimizer refuses, and what DropMuon refuses beside."""

    def matrix() -> list[Parameter]:
        return [Parameter(torch.randn(2, 3, device=device, dtype=dtype))]

    own: list[tuple[list[Any], dict[str, Any], type[Exception], str]] = [
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
        torch.tensor([[0]]), torch.ones(1, 2, dtype=dtype), (3, 2), check_invariants=True
    )
    refused_at_step = ErrorOptimizerInput(
        OptimizerInput(params=[sparse], kwargs={}, desc="sparse gradient"),
        error_on=OptimizerErrorEnum.STEP_ERROR,
        error_type=RuntimeError,
        error_regex="sparse=False",
    )
    return [*get_error_inputs_for_all_optims(device, dtype), *found, refused_at_step]


INFO = OptimizerInfo(
    cast(Any, DropMuon),  # torch's annotation wants an optimizer where a class is meant
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
contiguity = pytest.mark.parametrize("contiguous", [True, False], ids=["dense", "strided"])
implementation = pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "for-loop"])


# Torch's sentence, where ours says the same in other words.
SAID_OTHERWISE = {
    "invalid param type": "params must be a model or an iterable of parameters, got a Parameter",
    "Tensor lr must be 1-element": "lr as a tensor must have one element",
}


def configurations(test: Any) -> Any:
    """Run a test with every configuration, without the warning that unnamed embeddings get."""
    quiet = pytest.mark.filterwarnings("ignore:policy .scion. treats embeddings differently")
    named = pytest.mark.parametrize("given", CONFIGURATIONS, ids=lambda given: given.desc)
    return quiet(named(test))


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
    optimizer: Optimizer,
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
    """Two state dicts hold the same, bit for bit."""
    assert set(ours) == set(theirs)
    assert ours["dropmuon"] == theirs["dropmuon"]
    assert ours["param_groups"] == theirs["param_groups"]
    assert list(ours["state"]) == list(theirs["state"])
    for index, state in ours["state"].items():
        assert_equal(state, theirs["state"][index])


def snapshot(params: Iterable[Tensor]) -> list[Tensor]:
    return [param.detach().clone() for param in params]
