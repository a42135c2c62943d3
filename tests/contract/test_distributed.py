"""Two processes: the same sets without communication, the same parameters, also after resuming."""

from __future__ import annotations

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
    distributed.destroy_process_group()


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
