"""On two ranks, every framework trains as it does in one process with the batches of both."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, DistributedSampler

from dropmuon import DropMuon
from tests.contract.frameworks.tiny_models import tiny
from tests.contract.test_distributed import leave
from tests.integrations.test_transformers import make, rows

RANKS = 2
PARTS = 2
TEXTS: Any = torch.stack([row["input_ids"] for row in rows(48)])
SETTINGS: dict[str, Any] = {"lr": 0.02, "policy": "muon", "by": "block", "seed": 3}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*pin_memory"),
    pytest.mark.filterwarnings("ignore::Warning:lightning"),  # hints about workers and devices
    pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo"),
]


def tokens(ranks: int, sampler: Any = None) -> DataLoader[Tensor]:
    """Four texts per part, in batches for so many ranks, in order."""
    return DataLoader(TEXTS, batch_size=4 // ranks, sampler=sampler)


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    found: Tensor = model(input_ids=ids, labels=ids).loss
    return found


def in_transformers(path: Path, ranks: int) -> tuple[nn.Module, DropMuon]:
    """Train in parts of unequal numbers of tokens, from a first step that is not full."""
    trainer = make(
        path, {"full_start": False}, data=rows(16, masked=5), max_steps=6, learning_rate=1e-2,
        per_device_train_batch_size=4 // ranks, gradient_accumulation_steps=PARTS,
        gradient_checkpointing=True, train_sampling_strategy="sequential",
        ddp_backend="gloo" if ranks > 1 else None,
    )  # fmt: skip
    trainer.train()
    check_wrapped(trainer.model_wrapped, ranks)
    return trainer.model, trainer.drop_muon


def in_accelerate(path: Path, ranks: int) -> tuple[nn.Module, DropMuon]:
    """Train as the recipe of the docs does."""
    accelerate = pytest.importorskip("accelerate", reason="needs pip install -e '.[frameworks]'")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    unused = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=PARTS, kwargs_handlers=[unused]
    )
    plain, _ = tiny("llama")
    made = DropMuon(plain, **SETTINGS, parts=PARTS)
    model, optimizer, loader = accelerator.prepare(plain, made, tokens(ranks))
    check_wrapped(model, ranks)
    for ids in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss(model, ids))
            optimizer.step()
            optimizer.zero_grad()
    made.release()
    return plain, made


def in_lightning(path: Path, ranks: int) -> tuple[nn.Module, DropMuon]:
    pl = pytest.importorskip("lightning.pytorch", reason="needs pip install -e '.[frameworks]'")
    from dropmuon.integrations.lightning import DropMuonCallback, settings_of  # noqa: PLC0415

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny("llama")[0]

        def on_train_start(self) -> None:
            check_wrapped(self.trainer.model, ranks)

        def training_step(self, ids: Tensor, index: int) -> Tensor:
            return loss(self.model, ids)

        def configure_optimizers(self) -> DropMuon:
            return DropMuon(self.model, **SETTINGS, **settings_of(self.trainer))

    rank = distributed.get_rank() if ranks > 1 else 0
    in_order = DistributedSampler(TEXTS, ranks, rank, shuffle=False)  # Lightning's own shuffles
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=ranks, default_root_dir=path, logger=False,
        strategy="ddp_find_unused_parameters_true" if ranks > 1 else "auto",
        accumulate_grad_batches=PARTS, callbacks=[DropMuonCallback()], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, use_distributed_sampler=False,
    )  # fmt: skip
    module = Module().train()
    trainer.fit(module, tokens(ranks, in_order))
    return module.model, trainer.optimizers[0]


FRAMEWORKS: dict[str, Callable[[Path, int], tuple[nn.Module, DropMuon]]] = {
    "transformers": in_transformers,
    "accelerate": in_accelerate,
    "lightning": in_lightning,  # the last, since it clears variables of the environment
}


def check_wrapped(model: Any, ranks: int) -> None:
    wraps = isinstance(model, nn.parallel.DistributedDataParallel)
    assert wraps == (ranks > 1)


def results(framework: str, path: Path, ranks: int) -> dict[str, Any]:
    model, optimizer = FRAMEWORKS[framework](path, ranks)
    assert optimizer.steps == 6
    assert optimizer.parts == PARTS
    assert all(parameter.requires_grad for parameter in model.parameters())
    return {
        "weights": model.state_dict(),
        "moves": optimizer.moves,
        "saved": optimizer.saved_operations,
    }


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(place) for name, place in places.items()})
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    found = {name: results(name, Path(folder), RANKS) for name in FRAMEWORKS}
    torch.save(found, Path(folder) / f"{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank ends with, by framework; they share their processes, which start slowly."""
    folder = tmp_path_factory.mktemp("ranks")
    spawn(work, args=(str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_ranks_train_as_one_process_does(
    tmp_path: Path, framework: str, both: list[dict[str, Any]]
) -> None:
    first, second = (found[framework] for found in both)
    alone = results(framework, tmp_path, 1)
    assert first["saved"] == second["saved"]
    assert 0 < first["saved"].mean < alone["saved"].mean  # passes are shared, updates are not
    assert first["moves"] == second["moves"] == alone["moves"]
    for name, value in alone["weights"].items():
        mine, other = first["weights"][name], second["weights"][name]
        assert torch.equal(mine, other)
        torch.testing.assert_close(mine, value, rtol=1e-3, atol=1e-4)
