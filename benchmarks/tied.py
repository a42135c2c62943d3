"""Which layer should an embedding that is tied to the head move with? On a tied GPT-2.

    python benchmarks/tied.py [--steps 150] [--seeds 3] [--rates 0.003 0.01]

A small GPT-2 of transformers reads tiny Shakespeare byte by byte: from random weights, and from
weights that were trained with all layers on the first half of the text, continued on the second.
All runs of a table take equally many steps, with learning rates that fall to zero; operations are
counted for one forward and backward at each active set, and relative to those of all layers. Each
run is repeated at several learning rates of the tied weight and all else on AdamW, since a weight
that moves less often may need a larger one; the best mean is marked.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon, presets, samplers
from dropmuon.lab import data

CONTEXT, BATCH, PARTS = 64, 16, 4
SHARES = samplers.Shares([0.25] * 5 + [1.0])
METHODS: dict[str, dict[str, Any]] = {
    "all layers": {"sampler": "full"},
    "uniform, tied first": {"sampler": "uniform", "tied": "first"},
    "uniform, tied head": {"sampler": "uniform", "tied": "head"},
    "parts, tied first": {"sampler": SHARES, "parts": PARTS, "tied": "first"},
    "parts, tied head": {"sampler": SHARES, "parts": PARTS, "tied": "head"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.003, 0.01])
    options = parser.parse_args()
    text = data.load("shakespeare", context=CONTEXT)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{options.steps} steps of {BATCH} x {CONTEXT} bytes, {options.seeds} seeds")
    half = len(text.train) // 2
    first, second = torch.arange(half), torch.arange(half, len(text.train))
    scratch, tuned = [], []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        scratch.append(gpt2())
        tuned.append(copy.deepcopy(scratch[-1]))
        train(tuned[-1], text, first, 2 * options.steps, seed, 3e-3, METHODS["all layers"])
    print(f"loss before fine-tuning: {mean([test_loss(m, text) for m in tuned])}", flush=True)
    for title, models in (("random", scratch), ("trained", tuned)):
        print(f"{title} weights, gradient of the tied one: {parts_of_gradient(models, text)}")
    whole = torch.arange(len(text.train))
    report("from scratch", scratch, text, whole, options.steps, options.rates)
    report("fine-tuned", tuned, text, second, options.steps, options.rates, 0.3)


def report(
    title: str,
    starts: list[nn.Module],
    text: data.Data,
    where: Tensor,
    steps: int,
    rates: list[float],
    scale: float = 1.0,
) -> None:
    print(f"\n{title}: test loss, mean (deviation) over seeds, by learning rate of the tied weight")
    print(f"{'':20} {'operations':>10} {'moves':>6}", *(f"{rate * scale:>16g}" for rate in rates))
    whole = 0.0
    for method, settings in METHODS.items():
        cells: list[list[float]] = []
        for rate in rates:
            cells.append([])
            for seed, start in enumerate(starts):
                model = copy.deepcopy(start)
                spent, moves = train(model, text, where, steps, seed, rate, settings, scale)
                cells[-1].append(test_loss(model, text))
        whole = whole or spent
        best = min(map(statistics.mean, cells))
        marked = [mean(c) + ("*" if statistics.mean(c) == best else " ") for c in cells]
        row = " ".join(f"{cell:>16}" for cell in marked)
        print(f"{method:20} {spent / whole:10.2f} {moves:6} {row}", flush=True)


def train(
    model: nn.Module,
    text: data.Data,
    where: Tensor,
    steps: int,
    seed: int,
    rate: float,
    settings: dict[str, Any],
    scale: float = 1.0,
) -> tuple[float, int]:
    """Train in place; return operations of forward and backward, and moves of the tied weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tied parameters
        optimizer = presets.muon(
            model, 0.02 * scale, by="block", adamw_lr=rate * scale, seed=seed, **settings
        )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / steps)
    generator = torch.Generator().manual_seed(seed)
    costs: dict[Any, float] = {}
    spent, moves = 0.0, 0
    weight = model.get_parameter("lm_head.weight")
    for _ in range(steps):
        chosen = where[torch.randint(len(where), (BATCH,), generator=generator)]
        before = weight.detach().clone()
        for x, y in optimizer.split(*text.train.batch(chosen)):
            spent += backward(model, optimizer, x, y, costs)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        moves += not torch.equal(before, weight)
    return spent, moves


def backward(
    model: nn.Module, optimizer: DropMuon, x: Tensor, y: Tensor, costs: dict[Any, float]
) -> float:
    """Call backward; return its operations, which are counted once per active set."""
    key = (optimizer.active, len(x))
    if key in costs:
        loss(model, x, y).backward()
        return costs[key]
    with FlopCounterMode(display=False) as counter:
        loss(model, x, y).backward()
    costs[key] = counter.get_total_flops()
    return costs[key]


def parts_of_gradient(models: list[nn.Module], text: data.Data) -> str:
    """Compare the gradient of the look-up with that of the head, and the latter with their sum."""
    ratios, cosines = [], []
    batch = text.train.batch(torch.arange(0, len(text.train), len(text.train) // 64))
    for model in models:
        whole = gradient(model, *batch)
        table = model.get_submodule("transformer.wte")
        handle = table.register_forward_hook(lambda module, args, output: output.detach())
        head = gradient(model, *batch)
        handle.remove()
        ratios.append(((whole - head).norm() / head.norm()).item())
        cosines.append(F.cosine_similarity(head.flatten(), whole.flatten(), dim=0).item())
    return f"look-up over head {mean(ratios)}, cosine of head and whole {mean(cosines)}"


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss(model, x, y), model.get_parameter("lm_head.weight"))
    return found


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())


@torch.no_grad()
def test_loss(model: nn.Module, text: data.Data) -> float:
    model.eval()
    chosen = torch.arange(0, len(text.test), max(1, len(text.test) // 128))
    found = loss(model, *text.test.batch(chosen)).item()
    model.train()
    return found


def gpt2() -> nn.Module:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    size = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": CONTEXT}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**none, **size, **ends))
    return model


def mean(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ({deviation:.3f})"


if __name__ == "__main__":
    main()
