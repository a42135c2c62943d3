"""`DropMuonTrainer` on two ranks is what it is in one process with batches of both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn

from tests.contract.test_distributed import leave
from tests.integrations.test_transformers import make, rows

RANKS = 2


def trained_weights(path: Path, ranks: int) -> dict[str, Tensor]:
    """Train in parts of unequal numbers of tokens, from a first step that is not full."""
    trainer = make(
        path, {"full_start": False}, data=rows(16, masked=5), max_steps=6, learning_rate=1e-2,
        per_device_train_batch_size=4 // ranks, gradient_accumulation_steps=2,
        gradient_checkpointing=True, train_sampling_strategy="sequential",
        ddp_backend="gloo" if ranks > 1 else None,
    )  # fmt: skip
    trainer.train()
    assert (type(trainer.model_wrapped).__name__ == "DistributedDataParallel") == (ranks > 1)
    found: dict[str, Tensor] = trainer.model.state_dict()
    return found


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(place) for name, place in places.items()})
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    torch.save(trained_weights(Path(folder), RANKS), Path(folder) / f"{rank}.pt")
    leave()


@pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*pin_memory")
@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    spawn(work, args=(str(tmp_path),), nprocs=RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    for name, value in trained_weights(tmp_path, 1).items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-4)
