"""Lightning beside DropMuon: layers that are unfrozen in mid-training, and names of groups."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon

lightning = pytest.importorskip(
    "lightning.pytorch", reason="needs lightning: pip install -e '.[frameworks]'"
)
callbacks = pytest.importorskip("lightning.pytorch.callbacks", reason="as above")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's hints about workers and devices


class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A backbone of three layers and a head, on Muon's norms."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(4, 4) for _ in range(3)]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(4, 2)
        self.settings = settings

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        found: Tensor = self.head(self.backbone(batch)).square().mean()
        return found

    def configure_optimizers(self) -> DropMuon:
        return DropMuon(self, **{"lr": 0.02, "policy": "muon", **self.settings})


class Unfreeze(callbacks.BaseFinetuning):  # type: ignore[misc, name-defined]
    """Train the head, then the top of the backbone too, then all of it."""

    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.backbone)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.backbone[2], optimizer, lr=0.01)
        if epoch == 2:
            self.unfreeze_and_add_param_group(module.backbone[:2], optimizer, lr=0.005)
        if epoch > 2:  # a resumed run begins with everything frozen again
            self.make_trainable(module.backbone)


def fit(path: Path, epochs: int, resume: str | None = None, more: Any = ()) -> tuple[Any, Net]:
    model = Net()
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=path, callbacks=[Unfreeze(), *more],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data, batch_size=2)  # type: ignore[arg-type]
    trainer.fit(model, loader, ckpt_path=resume, weights_only=False)
    return trainer, model


def test_layers_that_are_unfrozen_later_are_as_if_they_had_been_there(tmp_path: Path) -> None:
    trainer, model = fit(tmp_path, 4)
    (optimizer,) = trainer.optimizers
    whole = Net().configure_optimizers()
    assert optimizer.layers == whole.layers == ("backbone.0", "backbone.1", "backbone.2", "head")
    norms = {m.name: str(m.norm) for m in optimizer.roster.members()}
    assert norms == {m.name: str(m.norm) for m in whole.roster.members()}
    rates = {n: g["lr"] for g in optimizer.param_groups for n in g["param_names"]}
    assert rates["backbone.2.weight"] == 0.01
    assert rates["backbone.0.weight"] == 0.005
    assert rates["backbone.0.bias"] == pytest.approx(0.005 * 3e-4 / 0.02)
    start = dict(Net().named_parameters())
    assert all(not torch.equal(p, start[n]) for n, p in model.named_parameters())


def test_a_run_with_unfrozen_layers_resumes_bit_for_bit(tmp_path: Path) -> None:
    _, unbroken = fit(tmp_path, 4)
    trainer, _ = fit(tmp_path, 3)
    trainer.save_checkpoint(tmp_path / "at-3.ckpt")
    resumed, model = fit(tmp_path, 4, str(tmp_path / "at-3.ckpt"))
    assert resumed.optimizers[0].layers == ("backbone.0", "backbone.1", "backbone.2", "head")
    for mine, other in zip(model.parameters(), unbroken.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_learning_rates_are_logged_by_the_names_of_groups(tmp_path: Path) -> None:
    logged: set[str] = set()

    class Log(lightning.loggers.CSVLogger):  # type: ignore[misc, name-defined]
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            logged.update(metrics)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, logger=Log(tmp_path), log_every_n_steps=1,
        callbacks=[callbacks.LearningRateMonitor()],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Scheduled(), torch.utils.data.DataLoader(torch.randn(4, 4)))  # type: ignore[arg-type]
    assert {f"lr-DropMuon/{name}" for name in ("backbone.0/spectral", "head/adamw")} <= logged


class Scheduled(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
