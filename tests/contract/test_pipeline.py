"""Stages of a pipeline: each draws from its own layers, and what that saves."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon
from tests.ranks import run_on_ranks

WIDTH, DEPTH, EXAMPLES = 8, 4, 8


def stage(number: int) -> nn.Sequential:
    torch.manual_seed(number)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(EXAMPLES, WIDTH, generator=generator) for _ in range(2))
    return x, y


def make(model: nn.Module, **settings: Any) -> DropMuon:
    return DropMuon(model, lr=0.05, seed=3, **settings)


def trains_as_both_stages_do_in_one_process(steps: int) -> None:
    """The sets of the whole are what the stages have drawn: not a cutoff, but one per stage."""
    rank = distributed.get_rank()
    mine = stage(rank)
    optimizer = make(mine)
    device = torch.device("cpu")
    pipeline = ScheduleGPipe(PipelineStage(mine, rank, 2, device), 2, loss_fn=F.mse_loss)
    both = nn.Sequential(*stage(0), *stage(1))
    whole = make(both)
    for step in range(steps):
        x, y = batch(step)
        seen: list[Any] = [None, None]
        distributed.all_gather_object(seen, optimizer.active)
        assert seen[0] == seen[1]  # the same seed and as many layers
        whole.activate([*seen[0], *(DEPTH + layer for layer in seen[1])])
        if rank == 0:
            pipeline.step(x)
        else:
            pipeline.step(target=y)
        F.mse_loss(both(x), y).backward()
        for each in (optimizer, whole):
            each.step()
            each.zero_grad()
    theirs = both[DEPTH * rank : DEPTH * (rank + 1)]
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(set(optimizer.moves.values())) > 1


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.filterwarnings("ignore")
def test_two_stages_train_as_one_process_with_their_sets_does() -> None:
    run_on_ranks(2, [partial(trains_as_both_stages_do_in_one_process, 10)])


@pytest.mark.parametrize("cutoff", range(DEPTH))
def test_a_later_stage_saves_gradients_of_weights_and_the_first_one_the_way_down(
    cutoff: int,
) -> None:
    """The first stage has nobody below it to pass a gradient to."""
    product = 2 * EXAMPLES * WIDTH * WIDTH
    active = DEPTH - cutoff
    for is_first in (True, False):
        model = stage(0)
        optimizer = make(model)
        optimizer.activate(range(cutoff, DEPTH))
        x = torch.randn(EXAMPLES, WIDTH, requires_grad=not is_first)
        goes_on = not is_first and cutoff > 0
        with pytest.warns(UserWarning, match="goes on below") if goes_on else nullcontext():
            out = model(x)
        with FlopCounterMode(display=False) as counter:
            out.backward(torch.ones_like(out))
        passed_on = active - 1 if is_first else DEPTH
        assert counter.get_total_flops() == product * (active + passed_on)
