"""Train a small transformer with FSDP2 and Drop-Muon; save a checkpoint, and resume from it.

    torchrun --nproc_per_node 2 examples/fsdp2.py

It runs on CPUs too. Only the active layers are reduced, and only their matrices travel in a step.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from dropmuon import DropMuon

VOCABULARY, WIDTH, BLOCKS, CONTEXT = 32, 32, 3, 16
STEPS, BATCH = 60, 16


def main() -> None:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda" if cuda else "cpu")
    run(device)
    distributed.destroy_process_group()


def run(device: torch.device) -> None:
    model, optimizer = sharded(device)
    say(f"{optimizer}\n")
    train(model, optimizer, device, range(STEPS // 2))
    with shared_folder() as folder:
        save(states(model, optimizer), checkpoint_id=folder)
        model, optimizer = sharded(device)
        saved = states(model, optimizer)
        load(saved, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["own"])
    train(model, optimizer, device, range(STEPS // 2, STEPS))


def sharded(device: torch.device) -> tuple[Transformer, DropMuon]:
    """Shard the blocks, then the model, and then make the optimizer."""
    torch.manual_seed(0)
    model = Transformer().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, DropMuon(model, lr=0.02, momentum=0.9, by="block", policy="muon", adamw_ratio=0.1)


def states(model: nn.Module, optimizer: DropMuon) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "own": of_optimizer}


def train(model: nn.Module, optimizer: DropMuon, device: torch.device, steps: range) -> None:
    for step in steps:
        x = sequences(step).to(device)
        logits = model(x[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            mean = loss.detach().clone()
            distributed.all_reduce(mean)
            mean /= distributed.get_world_size()
            say(f"step {step + 1:3d}   loss {mean.item():.3f}   next cutoff {optimizer.cutoff}")


def say(text: str) -> None:
    if distributed.get_rank() == 0:
        print(text, flush=True)


def sequences(step: int) -> Tensor:
    """Counting in steps of one to four, from anywhere; each rank has its own examples."""
    seed = step * distributed.get_world_size() + distributed.get_rank()
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    stride = torch.randint(1, 5, (BATCH, 1), generator=generator)
    return (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(BLOCKS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device)
        h = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        out: Tensor = self.head(self.norm(h)).clone()
        return out


@contextmanager
def shared_folder() -> Iterator[str]:
    """A temporary folder that all ranks know."""
    with tempfile.TemporaryDirectory() as own:
        names = [own]
        distributed.broadcast_object_list(names, src=0)
        yield names[0]
        distributed.barrier()


if __name__ == "__main__":
    main()
