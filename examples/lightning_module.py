"""Train a network on scikit-learn's digits with Lightning and Drop-Muon.

Four batches are accumulated per step, and each is a part with a cutoff of its own.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Sequence

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from dropmuon import DropMuon
from dropmuon.integrations.lightning import DropMuonCallback, settings_of
from dropmuon.samplers import SamplerName


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(given)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "The '.*dataloader' does not have many workers")
    print(f"{'':>16}  test accuracy  operations saved")
    methods: dict[str, SamplerName] = {
        "all layers": "full",
        "uniform cutoffs": "uniform",
        "adaptive": "adaptive",
    }
    for name, sampler in methods.items():
        accuracy, saved = outcome(sampler, options.epochs)
        print(f"{name:>16}  {accuracy:>13.1%}  {saved:>16.0%}")


class Digits(pl.LightningModule):  # type: ignore[misc]
    """A network of four layers, whose optimizer takes its parts and steps from the trainer."""

    def __init__(self, sampler: SamplerName) -> None:
        super().__init__()
        self.sampler = sampler
        self.layers = nn.Sequential(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU()),
            nn.Sequential(nn.Linear(256, 256), nn.ReLU()),
            nn.Sequential(nn.Linear(256, 256), nn.ReLU()),
            nn.Sequential(nn.Linear(256, 10)),
        )

    def training_step(self, batch: Sequence[Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: Sequence[Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.layers(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> DropMuon:
        settings = settings_of(self.trainer)
        return DropMuon(self, lr=0.02, sampler=self.sampler, by="block", **settings)


def outcome(sampler: SamplerName, epochs: int) -> tuple[float, float]:
    """Train a network, and return its accuracy and the share of operations that was saved."""
    torch.manual_seed(0)
    train, test = digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=epochs,
            accumulate_grad_batches=4,
            gradient_clip_val=1.0,
            callbacks=[DropMuonCallback()],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Digits(sampler), DataLoader(train, 64, shuffle=True), DataLoader(test, 512))
    found = trainer.callback_metrics
    return float(found["accuracy"]), float(found["dropmuon/saved_operations_mean"])


def digits() -> tuple[TensorDataset, TensorDataset]:
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1280], order[1280:]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


if __name__ == "__main__":
    main()
