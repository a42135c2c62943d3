"""What users do wrong with DropMuon in a framework; without the framework, a test is skipped."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dropmuon import DropMuon

__all__ = ["FRAMEWORK_MISUSES", "without"]


def trainer(options: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Make the Trainer of a tiny model, with whatever it is given."""
    transformers = pytest.importorskip("transformers")
    from dropmuon.integrations.transformers import DropMuonTrainer  # noqa: PLC0415

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, num_hidden_layers=2)
    model = transformers.LlamaForCausalLM(config)
    given = arguments.pop("given", None)
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder, use_cpu=True, report_to=[], disable_tqdm=True, max_steps=1, **arguments
        )
        optimizers = (None, None) if given is None else (given(model), None)
        return DropMuonTrainer(model, args, dropmuon=options, optimizers=optimizers)


def fit(make_optimizer: Callable[[Any], Any], **options: Any) -> None:
    """Fit a tiny module with Lightning."""
    pl = pytest.importorskip("lightning.pytorch")
    from dropmuon.integrations.lightning import DropMuonCallback  # noqa: PLC0415

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        """One layer."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return make_optimizer(self.layer)

    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's hints about workers and devices
        pl.Trainer(
            max_steps=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            callbacks=[DropMuonCallback()], **options,
        ).fit(Module(), torch.utils.data.DataLoader(data))  # fmt: skip


def fit_with_ddp() -> None:
    before = dict(os.environ)
    try:
        fit(DropMuon, strategy="ddp")
    finally:
        os.environ.clear()
        os.environ.update(before)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def without(integration: str, *frameworks: str) -> Any:
    """Import an integration anew, where these frameworks cannot be found."""
    module = f"dropmuon.integrations.{integration}"
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, module, raising=False)
        for framework in frameworks:
            patch.setitem(sys.modules, framework, None)
        return importlib.import_module(module)


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters())


FRAMEWORK_MISUSES: list[tuple[str, type[Exception], str, Callable[[], Any]]] = [
    (
        "transformers-missing",
        ImportError,
        "install the frameworks extra",
        lambda: without("transformers", "transformers"),
    ),
    (
        "lightning-missing",
        ImportError,
        "install the frameworks extra",
        lambda: without("lightning", "lightning", "lightning.pytorch", "pytorch_lightning"),
    ),
    (
        "trainer-of-other-parts",
        ValueError,
        "parts must be 1 or gradient_accumulation_steps, 4, got 2",
        lambda: trainer({"parts": 2}, gradient_accumulation_steps=4),
    ),
    (
        "trainer-of-a-given-optimizer-in-other-parts",
        ValueError,
        "parts must be 1 or gradient_accumulation_steps, 1, got 2",
        lambda: trainer(given=lambda model: DropMuon(model, parts=2)).create_optimizer(),
    ),
    (
        "trainer-of-adaptive-shares-without-accumulation",
        ValueError,
        "needs several parts, got parts=1: in a Trainer",
        lambda: trainer({"sampler": "adaptive"}),
    ),
    (
        "trainer-that-compiles-a-whole-with-a-given-optimizer",
        ValueError,
        r"dropmuon.compile_blocks\(model\)",
        lambda: trainer(given=DropMuon, torch_compile=True).create_optimizer(),
    ),
    (
        "trainer-of-several-updates",
        ValueError,
        "updates_per_batch must be 1 in a Trainer",
        lambda: trainer({"updates_per_batch": 2}),
    ),
    (
        "trainer-of-ddp-that-waits",
        ValueError,
        "ddp_find_unused_parameters must not be False",
        lambda: trainer(ddp_find_unused_parameters=False),
    ),
    (
        "trainer-that-compiles-a-whole",
        ValueError,
        r"dropmuon.compile_blocks\(model\)",
        lambda: trainer({"sampler": "uniform"}, torch_compile=True),
    ),
    (
        "trainer-of-another-optimizer",
        ValueError,
        "optimizers must hold a DropMuon, got SGD",
        lambda: trainer(given=sgd).create_optimizer(),
    ),
    (
        "lightning-without-dropmuon",
        ValueError,
        "DropMuonCallback needs a DropMuon, got SGD",
        lambda: fit(sgd),
    ),
    (
        "lightning-of-other-parts",
        ValueError,
        "parts must be 1 or accumulate_grad_batches, 2, got 4",
        lambda: fit(lambda layer: DropMuon(layer, parts=4), accumulate_grad_batches=2),
    ),
    (
        "lightning-of-ddp-that-waits",
        ValueError,
        "ddp_find_unused_parameters_true",
        fit_with_ddp,
    ),
]
