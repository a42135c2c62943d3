"""Train a small Llama with the Trainer of transformers, all layers and Drop-Muon in turn.

The text is the documentation that comes with Python, byte by byte. Both runs take equally many
steps, so that all layers learn more per step; the last column shows what Drop-Muon left out for it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainingArguments

from dropmuon.integrations.transformers import DropMuonTrainer


def main(given: Sequence[str] | None = None) -> None:
    options = parsed(given)
    train, test = documentation(options.context)
    print(f"{'':>20}  test loss  operations saved")
    for name, dropmuon in {
        "all layers": {"sampler": "full"},
        "uniform cutoffs": {"sampler": "uniform"},
        "adaptive": {"sampler": "adaptive"},
    }.items():
        loss, saved = outcome(options, dropmuon, train, test)
        print(f"{name:>20}  {loss:>9.3f}  {saved:>16.0%}")


def outcome(
    options: argparse.Namespace, dropmuon: dict[str, Any], train: Tensor, test: Tensor
) -> tuple[float, float]:
    """Train a model, and return its test loss and the share of operations that was saved."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            learning_rate=5e-3,
            weight_decay=0.01,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,  # four parts, each with its own cutoff
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = DropMuonTrainer(
            model=small_llama(options.width),
            args=arguments,
            train_dataset=[{"input_ids": row, "labels": row} for row in train],
            eval_dataset=[{"input_ids": row, "labels": row} for row in test],
            dropmuon=dropmuon,
        )
        trainer.remove_callback(PrinterCallback)  # logs stay in trainer.state
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    logged = [log for log in trainer.state.log_history if "loss" in log]
    return loss, logged[-1]["dropmuon/saved_operations_mean"]


def small_llama(width: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def documentation(context: int) -> tuple[Tensor, Tensor]:
    """Return the topics of Python's help() as rows of bytes, for training and for testing."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    count = len(text) // context
    rows = torch.frombuffer(bytearray(text[: count * context]), dtype=torch.uint8)
    rows = rows.view(count, context).long()
    cut = int(0.95 * count)
    return rows[:cut], rows[cut:][:64]


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
