"""Two processes: the same sets without communication, the same parameters, also after resuming."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from dropmuon import DropMuon, samplers

RANKS = 2


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))


def train(optimizer: DropMuon, net: nn.Module, rank: int, steps: int) -> list[tuple[int, ...]]:
    drawn = []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        drawn.append(optimizer.active)
        net(torch.randn(8, 5, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return drawn


def leave() -> None:
    """End a rank that has saved its results, without the exit of the interpreter.

    Threads of gloo may outlive it and then abort the process, on a loaded machine now and then.
    """
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    plain = model()
    optimizer = DropMuon(plain, lr=0.05, sampler=samplers.Nice(2), seed=7)
    wrapped = DistributedDataParallel(plain, find_unused_parameters=True)
    drawn = train(optimizer, wrapped, rank, 8)
    state = optimizer.state_dict()
    again = model()
    again.load_state_dict(plain.state_dict())
    resumed = DropMuon(again, lr=0.05, sampler=samplers.Nice(2), seed=7)
    resumed.load_state_dict(state)
    with resumed.full():
        wrapped = DistributedDataParallel(again, find_unused_parameters=True)
    drawn += train(resumed, wrapped, rank, 8)
    torch.save({"drawn": drawn, "model": again.state_dict()}, Path(folder) / f"{rank}.pt")
    leave()


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_ranks_draw_the_same_sets_and_stay_equal_also_after_resuming(tmp_path: Path) -> None:
    spawn(work, args=(str(tmp_path),), nprocs=RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    assert first["drawn"] == second["drawn"]
    assert len(set(first["drawn"])) > 3
    start = model().state_dict()
    for name, value in first["model"].items():
        assert isinstance(value, Tensor)
        assert torch.equal(value, second["model"][name])
        assert not torch.equal(value, start[name])


PARTS = 4


UNIFORM = samplers.Progressive()


def batch(step: int) -> Tensor:
    return torch.randn(16, 5, generator=torch.Generator().manual_seed(step))


def train_in_parts(
    optimizer: DropMuon, net: nn.Module, rank: int, ranks: int, *, no_sync: bool = False
) -> list[object]:
    """Each rank has its share of the examples of every part."""
    drawn: list[object] = []
    for step in range(10):
        for n, part in enumerate(batch(step).chunk(PARTS)):
            drawn.append(optimizer.active)
            waits = no_sync and isinstance(net, DistributedDataParallel) and n < PARTS - 1
            with net.no_sync() if waits else nullcontext():
                (net(part.chunk(ranks)[rank]).square().mean() / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return drawn


def work_in_parts(
    rank: int,
    folder: str,
    no_sync: bool,
    sampler: samplers.SamplerName | samplers.Sampler = "uniform",
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    plain = model()
    wrapped = DistributedDataParallel(plain, find_unused_parameters=True)
    optimizer = DropMuon(wrapped, lr=0.05, sampler=sampler, parts=PARTS, seed=7)
    drawn = train_in_parts(optimizer, wrapped, rank, RANKS, no_sync=no_sync)
    found = {"drawn": drawn, "model": plain.state_dict(), "noise": optimizer.noise}
    torch.save(found, Path(folder) / f"{rank}.pt")
    leave()


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.parametrize("no_sync", [False, True])
def test_two_ranks_train_in_parts_as_one_process_does(tmp_path: Path, no_sync: bool) -> None:
    spawn(work_in_parts, args=(str(tmp_path), no_sync), nprocs=RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    alone = model()
    drawn = train_in_parts(DropMuon(alone, lr=0.05, parts=PARTS, seed=7), alone, 0, 1)
    assert first["drawn"] == second["drawn"] == drawn
    assert len(set(drawn)) > 2
    for name, value in alone.state_dict().items():
        assert torch.equal(first["model"][name], second["model"][name])
        torch.testing.assert_close(first["model"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.parametrize("no_sync", [False, True])
def test_two_ranks_measure_the_same_noise_and_choose_the_same_shares(
    tmp_path: Path, no_sync: bool
) -> None:
    bold = samplers.Adaptive(caution=0.1)
    spawn(work_in_parts, args=(str(tmp_path), no_sync, bold), nprocs=RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    assert first["noise"] == second["noise"]
    assert min(first["noise"]) > 0
    assert first["drawn"] == second["drawn"]
    assert len(set(first["drawn"])) > 1
    for name, value in first["model"].items():
        assert torch.equal(value, second["model"][name])
