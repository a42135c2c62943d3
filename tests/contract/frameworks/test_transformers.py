"""transformers beside DropMuon: batches of a tokenizer, and the Trainer's own parameter groups."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from dropmuon import DropMuon
from tests.contract.frameworks.tiny_models import tiny, transformers

pytestmark = pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*pin_memory")


def test_a_batch_of_a_tokenizer_is_an_example() -> None:
    model, example = tiny("llama")
    batch = transformers.BatchEncoding(example)
    assert not isinstance(batch, dict)
    assert DropMuon(model, example=batch).layers == DropMuon(model, example=example).layers


def train(tmp_path: Path, model: Any, options: dict[str, Any]) -> Any:
    data = [{"input_ids": row, "labels": row} for row in torch.randint(3, 32, (8, 6))]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, weight_decay=0.1,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, optimizer_cls_and_kwargs=(DropMuon, options)
    )
    trainer.train()
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def test_a_trainer_that_hands_over_its_model_gets_layers_in_order(tmp_path: Path) -> None:
    model, _ = tiny("llama")
    options: dict[str, Any] = {"lr": 0.02, "by": "block", "policy": "muon"}
    expected = DropMuon(copy.deepcopy(model), **options)
    before = copy.deepcopy(model.state_dict())
    optimizer = train(tmp_path, model, {**options, "model": model})
    assert optimizer.layers == expected.layers
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_groups_that_a_trainer_makes_by_itself_cause_a_warning(tmp_path: Path) -> None:
    model, _ = tiny("llama")
    with pytest.warns(UserWarning, match="order is not that of the model"):
        train(tmp_path, model, {"lr": 0.02})
