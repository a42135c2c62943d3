"""`DropMuonCallback`: Lightning's Trainer and DropMuon agree on parts, steps and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropmuon import DropMuon
from tests.docs.misuses_of_frameworks import without

lightning = pytest.importorskip(
    "lightning.pytorch", reason="needs lightning: pip install -e '.[frameworks]'"
)
older = pytest.importorskip("pytorch_lightning", reason="as above")

from dropmuon.integrations.lightning import DropMuonCallback, settings_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's hints about workers and devices


def net(base: Any = lightning.LightningModule) -> type[Any]:
    class Net(base):  # type: ignore[misc]
        """Four layers, and an optimizer that takes its settings from the trainer."""

        def __init__(self, fails_at: int = -1, **settings: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
            self.settings, self.fails_at, self.frozen = settings, fails_at, 0

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            self.frozen += sum(not p.requires_grad for p in self.parameters())
            if index == self.fails_at:
                raise InterruptedError
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> DropMuon:
            return DropMuon(self, lr=0.02, **{**settings_of(self.trainer), **self.settings})

    return Net


Net = net()


def fit(path: Path, model: Any, kind: Any = lightning, **options: Any) -> Any:
    settings = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": path,
        "callbacks": [DropMuonCallback()],
    }  # fmt: skip
    trainer = kind.Trainer(**{**settings, **options})
    data = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))  # type: ignore[arg-type]
    return trainer


def all_on(model: nn.Module) -> bool:
    return all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("kind", [lightning, older], ids=["lightning", "pytorch_lightning"])
def test_parts_and_steps_come_from_the_trainer(tmp_path: Path, kind: Any) -> None:
    model = net(kind.LightningModule)(sampler="epoch-shift")
    trainer = fit(tmp_path, model, kind, accumulate_grad_batches=3)
    (optimizer,) = trainer.optimizers
    assert (optimizer.parts, optimizer.draws.total_steps, optimizer.steps) == (3, 4, 4)
    assert model.frozen > 0
    assert all_on(model)


def test_the_older_name_is_used_where_it_is_the_only_one() -> None:
    assert issubclass(DropMuonCallback, lightning.Callback)
    alone = without("lightning", "lightning", "lightning.pytorch")
    assert issubclass(alone.DropMuonCallback, older.Callback)


@pytest.mark.parametrize(("steps", "planned"), [(5, 5), (-1, None)])
def test_total_steps_are_those_planned_if_any(
    tmp_path: Path, steps: int, planned: int | None
) -> None:
    trainer = lightning.Trainer(
        max_epochs=-1, max_steps=steps, accelerator="cpu", logger=False, default_root_dir=tmp_path
    )
    assert settings_of(trainer) == {"parts": 1, "total_steps": planned}


def test_flags_are_given_back_after_an_error(tmp_path: Path) -> None:
    model = Net(fails_at=4)
    with pytest.raises(InterruptedError):
        fit(tmp_path, model)
    assert model.frozen > 0
    assert all_on(model)


def test_what_backwards_were_for_is_logged(tmp_path: Path) -> None:
    logged: list[dict[str, float]] = []

    class Log(lightning.loggers.CSVLogger):  # type: ignore[misc, name-defined]
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            logged.append(metrics)

    options: dict[str, Any] = {"log_every_n_steps": 1, "accumulate_grad_batches": 3}
    trainer = fit(tmp_path, Net(), logger=Log(tmp_path), **options)
    steps = [each for each in logged if "dropmuon/cutoff_step" in each]
    assert len(steps) == 4
    assert steps[0]["dropmuon/skipped_step"] == 0.0
    assert any(each["dropmuon/skipped_step"] > 0.0 for each in steps)
    for each in steps:
        shares = sum(
            value for name, value in each.items() if name.endswith("_step") and "share" in name
        )
        assert shares == pytest.approx(4 - each["dropmuon/cutoff_step"])
    assert any("dropmuon/skipped_epoch" in each for each in logged)
    saved = [each["dropmuon/saved_operations_step"] for each in steps]
    means = [each["dropmuon/saved_operations_mean"] for each in steps]
    assert saved[0] == 0.0
    assert means == pytest.approx([sum(saved[: n + 1]) / (n + 1) for n in range(4)])
    assert means[-1] == pytest.approx(trainer.optimizers[0].saved_operations.mean)
    epochs = [each for each in logged if "dropmuon/saved_operations_epoch" in each]
    assert len(epochs) == 2
    assert not any(name.startswith("dropmuon/saved_operations_mean_") for name in epochs[-1])


def test_other_optimizers_of_a_module_are_left_alone(tmp_path: Path) -> None:
    class Two(Net):  # type: ignore[misc, valid-type]
        """Two halves, trained by hand."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Tensor, index: int) -> None:
            for optimizer in self.optimizers():
                self.manual_backward(self.layers(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            lower, upper = self.layers[:2], self.layers[2:]
            return DropMuon(lower, parts=1), torch.optim.SGD(upper.parameters())

    model = Two()
    trainer = fit(tmp_path, model)
    assert trainer.optimizers[0].steps == 12
    assert all_on(model)
