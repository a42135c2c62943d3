"""Train a small GPT-2 on one text, then fine-tune it on another: all layers against parts.

The first text is the documentation that comes with Python, the second the source of some of its
modules. Both methods start from the same weights and see the same batches in the same order. Each
may spend as many operations as the other, counted while it trains, and its learning rate falls to
zero as it spends them; of several learning rates, each method shows its best on a validation part,
and is judged on a test part. One seed: differences of a few hundredths mean nothing.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import pathlib
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

from dropmuon import presets, samplers

PARTS = 4
RATES = (0.02, 0.04, 0.08)
METHODS: dict[str, samplers.Sampler] = {
    "all layers": samplers.Full(),
    "parts": samplers.Shares([0.25, 0.25, 0.5, 0.5, 0.75, 1.0]),
}
"""The share of each batch that each layer learns from: stem, four blocks, head."""


def main(given: Sequence[str] | None = None) -> None:
    options = parsed(given)
    torch.manual_seed(0)
    model = small_gpt2(options.width, options.context)
    first = Text("\n".join(topics[name] for name in sorted(topics)), options)
    second = Text("\n".join(map(inspect.getsource, (argparse, tarfile, pathlib, zipfile))), options)
    budget = options.steps * operations_per_step(model, second)
    train(model, first, METHODS["all layers"], 0.02, 2 * budget)
    print(f"before fine-tuning: test loss {second.test_loss(model):.3f} on the second text\n")
    print(f"{'':>12}  lr     steps  operations  test loss")
    for name, sampler in METHODS.items():
        runs = []
        for rate in RATES:
            copied = copy.deepcopy(model)
            steps, spent = train(copied, second, sampler, rate, budget)
            runs.append((second.validation_loss(copied), rate, steps, spent, copied))
        _, rate, steps, spent, best = min(runs, key=lambda run: run[0])
        loss = second.test_loss(best)
        print(f"{name:>12}  {rate:<5}  {steps:>5}  {spent:>10.2e}  {loss:>9.3f}")


def train(
    model: GPT2LMHeadModel, text: Text, sampler: samplers.Sampler, rate: float, budget: float
) -> tuple[int, float]:
    """Train until the next step may cost more than is left; return the steps and what they cost."""
    optimizer = presets.muon(
        model, lr=rate, by="block", sampler=sampler, parts=PARTS, adamw_ratio=0.05
    )
    model.train()
    spent = most = 0.0
    with optimizer:
        while spent + most <= budget:
            for group in optimizer.param_groups:
                group["lr"] = rate * (1.0 - spent / budget)
            with FlopCounterMode(display=False) as counter:
                for part in optimizer.split(text.batch(optimizer.steps)):
                    model(input_ids=part, labels=part).loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            spent += counter.get_total_flops()
            most = max(most if optimizer.steps > 2 else 0.0, counter.get_total_flops())
    return optimizer.steps, spent


def operations_per_step(model: GPT2LMHeadModel, text: Text) -> float:
    """Count what a step of all layers costs, on a copy."""
    copied = copy.deepcopy(model)
    optimizer = presets.muon(copied, by="block")
    with FlopCounterMode(display=False) as counter:
        copied(input_ids=text.batch(0), labels=text.batch(0)).loss.backward()
        optimizer.step()
    return float(counter.get_total_flops())


@dataclass
class Text:
    """A text as bytes: a training part, a validation part, and a test part."""

    text: str
    options: argparse.Namespace

    def __post_init__(self) -> None:
        data = torch.frombuffer(bytearray(self.text.encode()), dtype=torch.uint8).long()
        rows = data[: len(data) // self.options.context * self.options.context]
        rows = rows.view(-1, self.options.context)
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        self.validation, self.test, self.rows = rows[:64], rows[64:192], rows[192:]

    def batch(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        return self.rows[torch.randint(len(self.rows), (self.options.batch,), generator=generator)]

    def validation_loss(self, model: GPT2LMHeadModel) -> float:
        return mean_loss(model, self.validation)

    def test_loss(self, model: GPT2LMHeadModel) -> float:
        return mean_loss(model, self.test)


@torch.no_grad()
def mean_loss(model: GPT2LMHeadModel, rows: Tensor) -> float:
    model.eval()
    return float(model(input_ids=rows, labels=rows).loss)


def small_gpt2(width: int, context: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=256,
        n_positions=context,
        n_embd=width,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        loss_type="ForCausalLM",
    )
    return GPT2LMHeadModel(config)


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="of all layers, when fine-tuning")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
