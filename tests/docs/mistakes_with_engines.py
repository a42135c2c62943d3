"""What users of distributed engines do wrong."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from dropmuon import DropMuon, samplers
from dropmuon.integrations.ddp import reduce_active
from tests.contract.process_group import process_group
from tests.docs.mistakes_of_users import ddp_that_expects_all_gradients, make_model

__all__ = ["ENGINE_MISUSES"]


def flat_shards() -> None:
    with process_group(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP's own, of a single rank
        DropMuon(FullyShardedDataParallel(make_model(), device_id=torch.device("cpu")))


def zero_redundancy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of torch.jit
        zero = importlib.import_module("torch.distributed.optim").ZeroRedundancyOptimizer
    with process_group():
        zero(make_model().parameters(), optimizer_class=DropMuon, lr=0.1)


def flat_groups() -> None:
    model = make_model()
    optimizer = DropMuon(model)
    first, *others = optimizer.param_groups
    first["params"] = [nn.Parameter(torch.cat([p.detach().flatten() for p in model.parameters()]))]
    for group in others:
        group["params"] = []
    optimizer.step()


def replaced_after_a_step() -> None:
    model = make_model()
    optimizer = DropMuon(model)
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(each.detach().clone()) for each in group["params"]]
    optimizer.step()


def shards_without_model() -> None:
    model = make_model()
    with process_group():
        fully_shard(model)
        DropMuon(model.named_parameters(), parts=4)


def adaptive_shards() -> None:
    model = make_model()
    with process_group():
        fully_shard(model)
        DropMuon(model, parts=8, sampler=samplers.Adaptive())


def ddp_of_frozen_layers() -> None:
    model = make_model()
    with process_group():
        optimizer = DropMuon(model)
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.activate([2])
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        ddp(torch.ones(2, 4))


def ddp_that_skips_buckets() -> None:
    with process_group():
        skips: dict[str, Any] = {
            "find_unused_parameters": True,
            "skip_all_reduce_unused_params": True,
        }
        DropMuon(DistributedDataParallel(make_model(), **skips), parts=4)


def reduced_without_ddp() -> None:
    reduce_active(make_model())


def reduced_with_all_gradients() -> None:
    with process_group():
        reduce_active(DistributedDataParallel(make_model()))


def group_by_name() -> None:
    DropMuon(make_model(), process_group="gloo")


ENGINE_MISUSES: list[tuple[str, type[Exception], str, Callable[[], Any]]] = [
    (
        "ddp-expects-all-gradients",
        UserWarning,
        "find_unused_parameters=True",
        ddp_that_expects_all_gradients,
    ),
    (
        "ddp-of-frozen-layers",
        ValueError,
        r"averages 2 of 6 gradients.*'with optimizer.full\(\):'",
        ddp_of_frozen_layers,
    ),
    (
        "ddp-that-skips-buckets",
        ValueError,
        r"skip_all_reduce_unused_params=True .*reduce_active\(model\)",
        ddp_that_skips_buckets,
    ),
    ("reduced-without-ddp", ValueError, "model must hold .* wrap it first", reduced_without_ddp),
    (
        "reduced-with-all-gradients",
        ValueError,
        "find_unused_parameters=True and no static_graph",
        reduced_with_all_gradients,
    ),
    ("group-by-name", ValueError, "process_group must be .*WORLD, got a str", group_by_name),
    ("flat-shards", ValueError, r"\(FSDP1\), .*fully_shard", flat_shards),
    ("zero-redundancy", TypeError, "optimizer_class=DropMuon .*fully_shard", zero_redundancy),
    ("flat-groups", RuntimeError, "param_groups has 1 parameters, .*fully_shard", flat_groups),
    (
        "replaced-after-a-step",
        RuntimeError,
        "were replaced .* make DropMuon anew",
        replaced_after_a_step,
    ),
    (
        "shards-without-model",
        ValueError,
        "parts=4 needs the model .* model=model",
        shards_without_model,
    ),
    ("adaptive-shards", ValueError, "give samplers.Shares, or another sampler", adaptive_shards),
]
