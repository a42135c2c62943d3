"""Sharded parameters move as whole ones do; what travels is what moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from dropmuon import DropMuon, norms, rules, samplers
from dropmuon.shards import layout_of, placed
from dropmuon.step.sharded import _owners
from tests.ranks import Case, run_on_ranks
from tests.step.sharded_runs import (
    batch,
    check_near,
    check_trains_alike,
    fsdp,
    fsdp_tp,
    hsdp,
    make,
    tp,
    train,
    whole,
)
from tests.step.small_steps import POLICIES
from tests.step.traffic import Traffic

needs_gloo = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="torch was built without gloo"
)

SETTINGS: list[dict[str, Any]] = [
    {"policy": "muon", "nesterov": True, "weight_decay": 0.1, "adamw_ratio": 0.1, "turns": 2},
    {"step_rule": rules.Sharp(), "sampler": samplers.Nice(4), "lr": 0.01},
    {"step_rule": rules.Generalized(1.0, 2.0), "policy": "scion", "lr": 0.01},
    {"truncate": "refresh", "full_start": False, "foreach": False},
    {"updates_per_batch": 1, "momentum_start": "zero", "maximize": True, "resample_every": 2},
]

NORMS: list[norms.Norm | norms.AdamW] = [
    norms.Spectral(scale="rms"),
    norms.Spectral(blocks="batch"),
    norms.RowWise(scale="rms-in"),
    norms.ColumnWise(scale="rms-out"),
    norms.RowWise(blocks="batch"),
    norms.Euclidean(scale="rms"),
    norms.Sign(scale="mean-in"),
    norms.Transposed(norms.RowWise(scale="rms")),
    norms.Transposed(norms.Spectral(scale="muon")),
    norms.AdamW(),
]
IN_BLOCKS = [norms.Split(norms.Spectral(), 3), norms.Spectral(blocks=2), norms.RowWise(blocks=2)]
SHAPES = [(7,), (5, 3), (6, 4), (3, 5), (2, 3, 2, 2), (5, 4, 3)]


def makes_alike(way: Any, **settings: Any) -> None:
    check_trains_alike(way, **{"lr": 0.05, **settings})


@cache
def meshes() -> tuple[DeviceMesh, DeviceMesh | None]:
    """All ranks in a line and, if they are four, in a square."""
    ranks = distributed.get_world_size()
    line = init_device_mesh("cpu", (ranks,))
    square = ("cpu", (2, 2)) if ranks == 4 else None
    return line, None if square is None else init_device_mesh(*square, mesh_dim_names=("a", "b"))


def made_up(ndim: int) -> Iterator[tuple[DeviceMesh, tuple[Any, ...]]]:
    """Meshes, and ways to spread a tensor of this many axes over them."""
    line, square = meshes()
    for axis in range(ndim):
        yield line, (Shard(axis),)
    yield line, (Replicate(),)
    if square is not None:
        yield square, (Replicate(), Shard(ndim - 1))
        yield square, (Shard(0), Shard(0))
        yield square, (Shard(0), Shard(ndim - 1))


def follows_every_norm(rule: rules.StepRule) -> None:
    """Made-up gradients, zero and infinite ones among them, in all norms and on all meshes."""
    generator = torch.Generator().manual_seed(0)

    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    ours: list[tuple[Tensor, norms.Norm | norms.AdamW]] = []
    theirs: list[tuple[Tensor, norms.Norm | norms.AdamW]] = []
    for norm in (*NORMS, *IN_BLOCKS):
        for shape in SHAPES if norm in NORMS else [(6, 4)]:
            for mesh, placements in made_up(len(shape)):
                values = random(shape)
                theirs.append((nn.Parameter(values.clone()), norm))
                spread = distribute_tensor(values, mesh, placements, src_data_rank=None)
                ours.append((nn.Parameter(spread), norm))
    makers = [
        DropMuon(
            [{"params": [p], "norm": norm, "layer": n // 3} for n, (p, norm) in enumerate(each)],
            lr=0.1,
            step_rule=rule,
            sampler="full",
        )
        for each in (ours, theirs)
    ]
    for step in range(3):
        for n, ((mine, _), (other, _)) in enumerate(zip(ours, theirs, strict=True)):
            gradient = random(tuple(other.shape)) * 10.0 ** (n % 7 * 10 - 30)
            if n % 11 == step:
                gradient.zero_()
            if n % 50 == step:
                gradient.flatten()[-1] = math.inf
            other.grad = gradient
            assert isinstance(mine, DTensor)
            mine.grad = distribute_tensor(
                gradient, mine.device_mesh, mine.placements, src_data_rank=None
            )
        for optimizer in makers:
            optimizer.step()
    assert makers[0].skipped == makers[1].skipped
    assert 0 < len(makers[0].skipped) < len(makers[0].layers)
    for (mine, norm), (other, _) in zip(ours, theirs, strict=True):
        assert isinstance(mine, DTensor)
        note, layout = f"{norm} of {tuple(other.shape)} on {mine.placements}", layout_of(mine)
        check_near(mine.to_local(), layout.cut(other.detach(), layout.position), note)


def spreads_as_torch_does() -> None:
    for shape in SHAPES:
        values = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
        for mesh, placements in made_up(len(shape)):
            theirs = distribute_tensor(values, mesh, placements)
            layout, mine = layout_of(theirs), theirs.to_local()
            assert torch.equal(layout.cut(values, layout.position), mine)
            ours = placed(values, theirs)
            assert isinstance(ours, DTensor)
            assert torch.equal(ours.full_tensor(), values)
            assert ours.placements == theirs.placements


def sums_a_gradient_that_is_still_in_terms() -> None:
    mesh, _ = meshes()
    ours = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
    theirs = nn.Parameter(torch.ones(4))
    terms = torch.full((4,), 1.0 + distributed.get_rank())
    ours.grad = DTensor.from_local(terms, mesh, [Partial()])
    theirs.grad = torch.full((4,), sum(1.0 + rank for rank in range(mesh.size())))
    for parameter in (ours, theirs):
        DropMuon([parameter], lr=0.1, step_rule=rules.Sharp()).step()
    torch.testing.assert_close(whole(ours.detach()), theirs.detach())


def skips_a_layer_on_all_ranks_if_one_sees_a_nan() -> None:
    ours, theirs = make(), make()
    share = fsdp(ours)
    optimizers = [DropMuon(each, lr=0.05, sampler="full") for each in (ours, theirs)]
    for model, optimizer, its in ((ours, optimizers[0], share), (theirs, optimizers[1], (1, 0))):
        train(model, optimizer, 1, its)
        x, y = batch(1)
        F.cross_entropy(model(x.chunk(its[0])[its[1]]), y.chunk(its[0])[its[1]]).backward()
        gradient: Any = model.blocks[1].up.weight.grad
        values = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        if model is theirs or distributed.get_rank() == 1:
            values[0, 0] = math.nan
        optimizer.step()
        optimizer.zero_grad()
    assert optimizers[0].skipped == optimizers[1].skipped == {"blocks.1.up": 1}
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(whole(mine.detach()), other.detach(), rtol=1e-9, atol=1e-9)


def sends_what_moves() -> None:
    """Every byte of a step is accounted for, at every cutoff."""
    model = make()
    share = fsdp(model)
    optimizer = DropMuon(model, lr=0.05)
    train(model, optimizer, 1, share)
    top, ranks, totals = len(optimizer.layers), distributed.get_world_size(), []
    for cutoff in range(top):
        optimizer.activate(range(cutoff, top))
        x, y = (each.chunk(ranks)[distributed.get_rank()] for each in batch(cutoff))
        F.cross_entropy(model(x), y).backward()
        with Traffic() as traffic:
            optimizer.step()
        optimizer.zero_grad()
        moving = [m for layer in optimizer.roster.layers[cutoff:] for m in layer]
        entries = [m.parameter.numel() for m in moving if m.parameter.ndim == 2]
        vectors = sum(m.parameter.ndim == 1 for m in moving)
        there_and_back = 2 * 8 * sum(entries) if len(entries) > 1 else 0
        sums = torch.tensor([traffic.bytes["alltoall_base_"], traffic.bytes.total()])
        distributed.all_reduce(sums)
        exchanged, total = sums.tolist()
        assert exchanged == there_and_back
        assert traffic.calls["alltoall_base_"] == (2 if len(entries) > 1 else 0)
        assert traffic.calls["allgather_"] == (len(entries) == 1)
        assert traffic.calls["allreduce_"] == 2  # what is finite, and lengths of vectors
        assert traffic.bytes["allreduce_"] == 4 * (top - cutoff) + 8 * vectors
        assert traffic.calls.total() <= 4
        totals.append(total)
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < totals[0] / 10


def keeps_momentum_sharded() -> None:
    model = make()
    optimizer = DropMuon(model, lr=0.05, policy="muon") if fsdp(model) else None
    assert optimizer is not None
    train(model, optimizer, 1, (distributed.get_world_size(), distributed.get_rank()))
    for parameter in model.parameters():
        for value in optimizer.state[parameter].values():
            if isinstance(value, Tensor) and value.ndim:
                assert isinstance(value, DTensor)
                assert value.placements == parameter.placements  # type: ignore[attr-defined]


BOTH: list[Case] = [
    spreads_as_torch_does,
    sums_a_gradient_that_is_still_in_terms,
    skips_a_layer_on_all_ranks_if_one_sees_a_nan,
    sends_what_moves,
    keeps_momentum_sharded,
    partial(follows_every_norm, rules.Sharp()),
]


@needs_gloo
def test_two_ranks_train_as_one_process_does() -> None:
    policies = [partial(makes_alike, way, policy=p) for way in (fsdp, tp) for p in POLICIES]
    settings = [partial(makes_alike, fsdp, **each) for each in SETTINGS]
    run_on_ranks(2, [*BOTH, partial(follows_every_norm, rules.Constant()), *policies, *settings])


@needs_gloo
def test_four_ranks_train_as_one_process_does() -> None:
    """Some of them hold nothing of small tensors; meshes have two dimensions."""
    ways = ((fsdp, "spectral"), (tp, "scion"), (hsdp, "muon"), (fsdp_tp, "scion"))
    run_on_ranks(4, [*BOTH, *(partial(makes_alike, way, policy=p) for way, p in ways)])


def test_matrices_are_shared_out_by_cost_and_equal_ones_go_round() -> None:
    assert _owners([1.0] * 5, 3) == [0, 1, 2, 0, 1]
    assert _owners([1.0, 8.0, 3.0, 3.0], 2) == [1, 0, 1, 1]
    assert _owners([2.0], 4) == [0]
