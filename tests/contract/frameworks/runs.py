"""One small training run in every framework, with the features that loops have.

The model is a tiny Llama, the data come in a fixed order, and the optimizer is Muon with cutoffs
between blocks. With peft, the loop is that of plain torch, and the model has adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dropmuon import DropMuon, compile_blocks, presets
from tests.contract.frameworks.tiny_models import tiny, transformers

__all__ = ["FRAMEWORKS", "Run", "Wanted", "train"]

NON_REENTRANT = {"use_reentrant": False}


@dataclass(frozen=True)
class Wanted:
    """What a run is to do. `saves_at` is the step after which it saves, or resumes if asked to.

    With `repeats` all steps have the same batch; in float16, gradients of the first one overflow.
    """

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 4
    batch: int = 2
    accumulates: int = 1
    clip: float = 0.0
    checkpoints: bool = False
    evaluates: bool = False
    averages: bool = False
    compiled: bool = False
    saves_at: int = 0
    resumes: bool = False
    bfloat16: bool = False
    float16: bool = False
    repeats: bool = False

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """A scaler that starts far too high, and after the first step is right."""
        return torch.amp.GradScaler(
            "cpu", init_scale=2.0**30, backoff_factor=2.0**-20, enabled=self.float16
        )

    @property
    def optimizer_settings(self) -> dict[str, Any]:
        shared = {"sampler": "uniform", "by": "block", "lr": 0.01, "adamw_lr": 1e-3, "seed": 3}
        return {**shared, "parts": self.accumulates, **self.settings}

    @property
    def rows(self) -> Tensor:
        count, times = self.batch * self.accumulates, self.steps
        different, same = (count, times) if self.repeats else (count * times, 1)
        rows = torch.randint(3, 32, (different, 8), generator=torch.Generator().manual_seed(1))
        return rows.repeat(same, 1)

    def batches(self) -> Iterator[tuple[int, Tensor, bool]]:
        """The step, the tokens, and whether the step ends; from where a resumed run begins."""
        skipped = self.saves_at * self.accumulates if self.resumes else 0
        for n, tokens in enumerate(self.rows.split(self.batch)):
            if n >= skipped:
                yield n // self.accumulates, tokens, (n + 1) % self.accumulates == 0


class Run:
    """The weights that a run began with, those after each of its steps, and their averages."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer: DropMuon | None = None
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.weights = [self._now()]
        self.averaged: dict[str, Tensor] = {}

    def follow(self, optimizer: DropMuon) -> DropMuon:
        self.optimizer = optimizer
        optimizer.register_step_post_hook(lambda *_: self.weights.append(self._now()))
        return optimizer

    def _now(self) -> dict[str, Tensor]:
        named = self.model.named_parameters()
        return {_plain(name): p.detach().clone() for name, p in named}


def _plain(name: str) -> str:
    return name.replace("._orig_mod", "").removeprefix("module.").removeprefix("model.")


def train(framework: str, wanted: Wanted) -> Run:
    model, _ = tiny("llama")
    model = model if wanted.bfloat16 or wanted.float16 else model.double()
    if framework == "peft":
        peft = pytest.importorskip("peft", reason="needs pip install -e '.[frameworks]'")
        targets = ["q_proj", "v_proj", "up_proj", "down_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    if wanted.compiled:
        compile_blocks(model, backend="eager")
    if wanted.checkpoints and framework != "transformers":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=NON_REENTRANT)
        model.disable_input_require_grads()
    if wanted.float16:
        model.forward = torch.autocast("cpu", torch.float16)(model.forward)
    run = Run(model)
    FRAMEWORKS[framework](run, wanted)
    return run


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    found: Tensor = model(input_ids=tokens, labels=tokens).loss
    return found


def _evaluate(model: nn.Module, tokens: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        _loss(model, tokens)
    model.train()


def _named(averaged: AveragedModel) -> dict[str, Tensor]:
    return {_plain(name): p.detach() for name, p in averaged.module.named_parameters()}


def in_torch(run: Run, wanted: Wanted) -> None:
    model, file = run.model, wanted.path / "saved.pt"
    optimizer = run.follow(presets.muon(model, **wanted.optimizer_settings))
    if wanted.resumes:
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    averaged = AveragedModel(model) if wanted.averages else None
    scaler = wanted.scaler
    for step, tokens, ends in wanted.batches():
        with torch.autocast("cpu", torch.bfloat16, enabled=wanted.bfloat16):
            loss = _loss(model, tokens) / wanted.accumulates
        scaler.scale(loss).backward()
        if not ends:
            continue
        if wanted.clip:
            nn.utils.clip_grad_norm_(model.parameters(), wanted.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if wanted.evaluates:
            _evaluate(model, tokens)
        if averaged is not None:
            averaged.update_parameters(model)
        if step + 1 == wanted.saves_at:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    run.averaged = {} if averaged is None else _named(averaged)
    optimizer.release()


def in_accelerate(run: Run, wanted: Wanted) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs pip install -e '.[frameworks]'")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=wanted.accumulates,
        mixed_precision="bf16" if wanted.bfloat16 else "no",
    )  # fmt: skip
    if wanted.float16:  # of which accelerate makes one only on an accelerator
        accelerator.scaler = wanted.scaler
    made = run.follow(presets.muon(run.model, **wanted.optimizer_settings))
    model, optimizer = accelerator.prepare(run.model, made)
    if wanted.resumes:
        accelerator.load_state(wanted.path / "saved")
    averaged = AveragedModel(model) if wanted.averages else None
    for step, tokens, ends in wanted.batches():
        with accelerator.accumulate(model):
            accelerator.backward(_loss(model, tokens))
            assert accelerator.sync_gradients == ends
            if ends and wanted.clip:
                accelerator.clip_grad_norm_(model.parameters(), wanted.clip)
            optimizer.step()
            optimizer.zero_grad()
        if ends and wanted.evaluates:
            _evaluate(model, tokens)
        if ends and averaged is not None:
            averaged.update_parameters(model)
        if ends and step + 1 == wanted.saves_at and not wanted.resumes:
            accelerator.save_state(wanted.path / "saved")
    run.averaged = {} if averaged is None else _named(averaged)
    optimizer.optimizer.release()


def in_transformers(run: Run, wanted: Wanted) -> None:
    from dropmuon.integrations.transformers import DropMuonTrainer  # noqa: PLC0415

    averaged = AveragedModel(run.model) if wanted.averages else None

    class Follow(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
            run.follow(optimizer.optimizer)

        def on_step_end(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            if averaged is not None:
                averaged.update_parameters(model)

    arguments = transformers.TrainingArguments(
        str(wanted.path), max_steps=wanted.steps, per_device_train_batch_size=wanted.batch,
        gradient_accumulation_steps=wanted.accumulates, max_grad_norm=wanted.clip,
        gradient_checkpointing=wanted.checkpoints, bf16=wanted.bfloat16,
        eval_strategy="steps" if wanted.evaluates else "no", eval_steps=1,
        save_strategy="steps" if wanted.saves_at else "no", save_steps=wanted.saves_at or 500,
        train_sampling_strategy="sequential", lr_scheduler_type="constant", use_cpu=True,
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in wanted.rows]
    trainer = DropMuonTrainer(
        run.model, arguments, train_dataset=data, eval_dataset=data, callbacks=[Follow()],
        dropmuon=wanted.optimizer_settings,
    )  # fmt: skip
    if wanted.float16:
        trainer.accelerator.scaler = wanted.scaler
    saved = str(wanted.path / f"checkpoint-{wanted.saves_at}")
    trainer.train(resume_from_checkpoint=saved if wanted.resumes else None)
    run.averaged = {} if averaged is None else _named(averaged)


class StatefulLoader:
    """Batches in order; Lightning saves its place, which resuming within an epoch needs."""

    def __init__(self, wanted: Wanted) -> None:
        self._batches, self._place = wanted.rows.split(wanted.batch), 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Tensor]:
        for tokens in self._batches[self._place :]:
            self._place += 1
            yield tokens

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._place = state["place"]


def in_lightning(run: Run, wanted: Wanted) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="needs pip install -e '.[frameworks]'")
    from dropmuon.integrations.lightning import DropMuonCallback  # noqa: PLC0415

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = run.model

        def training_step(self, tokens: Tensor, index: int) -> Tensor:
            return _loss(self.model, tokens)

        def validation_step(self, tokens: Tensor, index: int) -> None:
            _loss(self.model, tokens)

        def configure_optimizers(self) -> DropMuon:
            return run.follow(presets.muon(self.model, **wanted.optimizer_settings))

    used: list[Any] = [DropMuonCallback()]
    if wanted.averages:
        used.append(pl.callbacks.WeightAveraging())
    if wanted.saves_at:
        every = {"every_n_train_steps": wanted.saves_at, "save_top_k": -1}
        used.append(pl.callbacks.ModelCheckpoint(wanted.path, "{step}", **every))
    scaled = pl.plugins.MixedPrecision("16-mixed", "cpu", wanted.scaler)
    trainer = pl.Trainer(
        max_steps=wanted.steps, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=bool(wanted.saves_at), callbacks=used,
        accumulate_grad_batches=wanted.accumulates, gradient_clip_val=wanted.clip or None,
        precision="bf16-mixed" if wanted.bfloat16 else None, default_root_dir=wanted.path,
        limit_val_batches=int(wanted.evaluates), val_check_interval=wanted.accumulates,
        plugins=[scaled] if wanted.float16 else None,
    )  # fmt: skip
    loader = StatefulLoader(wanted)
    saved = str(wanted.path / f"step={wanted.saves_at}.ckpt")
    run.model.train()
    trainer.fit(
        Module(),
        loader,
        StatefulLoader(wanted),
        ckpt_path=saved if wanted.resumes else None,
        weights_only=False,
    )
    run.averaged = run._now() if wanted.averages else {}


FRAMEWORKS: dict[str, Callable[[Run, Wanted], None]] = {
    "torch": in_torch,
    "transformers": in_transformers,
    "lightning": in_lightning,
    "accelerate": in_accelerate,
    "peft": in_torch,
}
