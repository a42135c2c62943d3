"""AdamW beside the norms: in 16 bits, and where squares overflow."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from dropmuon import DropMuon, presets
from dropmuon.shards import local
from tests.contract.process_group import process_group


def made(model: nn.Module) -> DropMuon:
    return presets.muon(model, lr=0.01, adamw_lr=0.01, sampler="full")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adamw_of_16_bit_parameters_is_computed_with_32(dtype: torch.dtype) -> None:
    """Gradients whose squares, and an eps that, are zero in 16 bits; rows without a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 4), nn.Flatten(), nn.Linear(8, 3)).to(dtype)
    wide = copy.deepcopy(model).float()
    optimizers = [
        presets.muon(each, lr=0.01, adamw_lr=0.01, sampler="full") for each in (model, wide)
    ]
    for step in range(3):
        for each in (model, wide):
            for number, p in enumerate(each.parameters()):
                drawn = torch.Generator().manual_seed(10 * step + number)
                p.grad = (1e-4 * torch.randn(p.shape, generator=drawn)).to(dtype).to(p.dtype)
                p.grad[0] = 0.0
        for optimizer in optimizers:
            optimizer.step()
    assert optimizers[0].skipped == {}
    moved = zip(model.parameters(), wide.parameters(), strict=True)
    for narrow, other in moved:
        torch.testing.assert_close(narrow.float(), other, rtol=0.02, atol=2e-3)
    fresh = made(model)
    fresh.load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for p in model.parameters():
        for name, value in optimizers[0].state[p].items():
            other = fresh.state[p][name]
            assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value


def test_a_gradient_whose_square_overflows_is_skipped_and_told() -> None:
    table = nn.Embedding(4, 3)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(6, 2))
    optimizer = presets.muon(model, lr=0.01, sampler="full")
    for size in (1e25, 1.0):
        before = table.weight.detach().clone()
        for p in model.parameters():
            p.grad = torch.full_like(p, size)
        optimizer.step()
        assert torch.equal(before, table.weight) == (size > 1)
    assert optimizer.skipped["0"] == 1


def test_moments_of_16_bit_shards_are_loaded_with_32() -> None:
    table, spread = (nn.Embedding(6, 4, dtype=torch.float16) for _ in range(2))
    first = made(nn.Sequential(table))
    table.weight.grad = torch.full_like(table.weight, 1e-4)
    first.step()
    with process_group():
        whole = nn.Sequential(spread)
        fully_shard(whole)
        second = made(whole)
        second.load_state_dict(first.state_dict())
        (ours,), (theirs,) = second.state.values(), first.state.values()
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(local(ours[name]), theirs[name])
            assert ours[name].dtype == torch.float32
