"""What a step costs: truncation against an oracle, our update against other Muons, draw + freeze.

    python benchmarks/step.py [--rounds 15] [--only TABLE]

The figures of docs/benchmarks.md come from its output, kept in benchmarks/step.txt. On a CPU
without bfloat16, `--only muon` takes very long.

All contestants of a table take turns inside one process, and the tables show ratios: drift of the
machine cancels. The median over the rounds is printed, with the ratio of minima beside it.
"""

from __future__ import annotations

import os

# torch.optim.Muon multiplies in bfloat16, which is an illegal instruction on some virtual CPUs
# that announce AMX. This keeps oneDNN from it; it must be set before torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon
from dropmuon.checks import import_extra
from dropmuon.lab.models import build
from dropmuon.samplers import Progressive, Shares

Contest = dict[str, Callable[[], None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    choices = ["truncation", "parts", "turns", "reuse", "float32", "muon", "freeze"]
    parser.add_argument("--only", choices=choices)
    options = parser.parse_args()
    tables = {
        "truncation": truncation,
        "parts": parts,
        "turns": turns,
        "reuse": reuse,
        "float32": against_float32,
        "muon": against_muon,
        "freeze": draw_and_freeze,
    }
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.rounds} rounds")
    for name, table in tables.items():
        if options.only in (None, name):
            table(options.rounds)


# Step time by cutoff, against a hand-placed detach


def truncation(rounds: int) -> None:
    """A step at each cutoff, and the same with the prefix cut off by hand."""
    for title, blocks, x, y in (cnn(), transformer(), gpt()):
        print(f"\nstep time by cutoff, {title}: DropMuon / hand-placed detach (goal: 1.03)")
        contest: Contest = {}
        for cutoff in range(len(blocks)):
            contest[f"ours {cutoff}"] = truncated_step(blocks, cutoff, x, y)
            contest[f"oracle {cutoff}"] = detached_step(blocks, cutoff, x, y)
            contest[f"frozen {cutoff}"] = detached_step(blocks, cutoff, x, y, frozen=True)
        times = take_turns(contest, rounds)
        counts = [operations(contest[f"ours {cutoff}"]) for cutoff in range(len(blocks))]
        for cutoff in range(len(blocks)):
            ours, oracle = times[f"ours {cutoff}"], times[f"oracle {cutoff}"]
            share, counted = ratio(ours, times["ours 0"]), counts[cutoff] / counts[0]
            frozen = ratio(ours, times[f"frozen {cutoff}"])
            print(
                f"  cutoff {cutoff}: {ratio(ours, oracle)}   weights frozen too: {frozen}", end=""
            )
            print(f"   of a full step: {share}, ", end="")
            print(f"operations {counted:.2f}", flush=True)


def operations(step: Callable[[], None]) -> int:
    """Operations of matrix products in a step, update included: no noise in these."""
    getattr(step, "prepare", lambda: None)()
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def truncated_step(blocks: nn.Sequential, cutoff: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    blocks = copy.deepcopy(blocks)  # two optimizers on one model would fight over its flags
    optimizer = DropMuon(blocks, lr=1e-4, by=by_block)

    def step() -> None:
        F.cross_entropy(blocks(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    def prepare() -> None:
        optimizer.activate(tuple(range(cutoff, len(blocks))))

    step()
    step.prepare = prepare  # type: ignore[attr-defined]
    return step


def detached_step(
    blocks: nn.Sequential, cutoff: int, x: Tensor, y: Tensor, *, frozen: bool = False
) -> Callable[[], None]:
    """The oracle: the same arithmetic, no sampler, no flags; the suffix is a model of its own.

    Where the weights of the prefix are `frozen`, PyTorch multiplies by them as it does for ours.
    """
    blocks = copy.deepcopy(blocks)
    prefix, suffix = blocks[:cutoff], blocks[cutoff:]
    prefix.requires_grad_(not frozen)
    optimizer = DropMuon(suffix, lr=1e-4, by=by_block, sampler="full")

    def step() -> None:
        with torch.no_grad():
            h = prefix(x)
        F.cross_entropy(suffix(h), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_block(name: str, parameter: Tensor) -> str:
    return name.partition(".")[0]


def cnn() -> tuple[str, nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    widths = [1, 64, 128, 256]
    blocks = [
        nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
        for i, o in pairwise(widths)
    ]
    model = nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(256 * 9, 10)))
    return "CNN 64-128-256", model, torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,))


def transformer() -> tuple[str, nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(4)
    ]
    model = nn.Sequential(nn.Embedding(256, 192), *layers, Pooled(nn.Linear(192, 256)))
    x, y = torch.randint(0, 256, (16, 128)), torch.randint(0, 256, (16,))
    return "transformer of 4 blocks", model, x, y


def gpt() -> tuple[str, nn.Sequential, Tensor, Tensor]:
    """As large as the transformer; but every matrix product has a contiguous input.

    PyTorch multiplies one that is not, as in `nn.TransformerEncoderLayer`, by a slower function
    where the weight is frozen.
    """
    torch.manual_seed(0)
    model = build("gpt", (128,), 256, (192,) * 4)
    x, y = (torch.randint(0, 256, (16, 128)) for _ in range(2))
    return "GPT of 4 blocks", model, x, y


class Pooled(nn.Module):
    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean(1))
        return logits


# Steps with turns, against steps in which every matrix moves


def turns(rounds: int) -> None:
    """Four steps of a transformer on few tokens, with matrices moving at every r-th step."""
    title, blocks, x, y = transformer()
    for examples in (8, 32):
        some, labels = x.repeat(2, 1)[:examples], y.repeat(2)[:examples]
        contest = {f"r = {r}": turned_steps(blocks, some, labels, r) for r in (1, 2, 4)}
        contest["no update"] = turned_steps(blocks, some, labels, None)
        times = take_turns(contest, rounds)
        rest = statistics.median(times["no update"]) / statistics.median(times["r = 1"])
        print(f"\nsteps with turns, {title}, {some.numel()} tokens / all matrices at every step:")
        print(f"  updates take {1 - rest:.2f} of a step")
        for r in (2, 4):
            print(f"  r = {r}: {ratio(times[f'r = {r}'], times['r = 1'])}", flush=True)


def turned_steps(
    blocks: nn.Sequential, x: Tensor, y: Tensor, turns: int | None
) -> Callable[[], None]:
    blocks = copy.deepcopy(blocks)
    optimizer = DropMuon(
        blocks, lr=1e-4, by=by_block, sampler="full", policy="muon", turns=turns or 1
    )

    def steps() -> None:
        for _ in range(4):
            F.cross_entropy(blocks(x), y).backward()
            if turns is not None:
                optimizer.step()
            optimizer.zero_grad()

    steps()
    return steps


# A step in parts, against a loop with hand-placed detach

PARTS = 4


def parts(rounds: int) -> None:
    """A quarter of the batch for all layers, the rest for the head only."""
    for title, blocks, x, y in (cnn(), transformer(), gpt()):
        contest: Contest = {
            "parts": parted_step(blocks, x, y),
            "by hand": hand_parted_step(blocks, x, y),
            "full": truncated_step(blocks, 0, x, y),
        }
        times = take_turns(contest, rounds)
        counted = operations(contest["parts"]) / operations(contest["full"])
        print(f"\nstep in {PARTS} parts, one of them full, the others for the head, {title}:")
        print(f"  / the same by hand {ratio(times['parts'], times['by hand'])} (goal: 1.05)")
        print(f"  / a full step {ratio(times['parts'], times['full'])}, ", end="")
        print(f"operations {counted:.2f}", flush=True)


def parted_step(blocks: nn.Sequential, x: Tensor, y: Tensor) -> Callable[[], None]:
    blocks = copy.deepcopy(blocks)
    shares = [1 / PARTS] * (len(blocks) - 1) + [1.0]
    optimizer = DropMuon(blocks, lr=1e-4, by=by_block, sampler=Shares(shares), parts=PARTS)

    def step() -> None:
        for some, labels in optimizer.split(x, y):
            F.cross_entropy(blocks(some), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


def hand_parted_step(blocks: nn.Sequential, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The oracle: the same arithmetic in a loop that detaches by hand, all layers moved."""
    blocks = copy.deepcopy(blocks)
    prefix, head = blocks[:-1], blocks[-1]
    optimizer = DropMuon(blocks, lr=1e-4, by=by_block, sampler="full")

    def step() -> None:
        for part, (some, labels) in enumerate(zip(x.chunk(PARTS), y.chunk(PARTS), strict=True)):
            with torch.set_grad_enabled(part == 0):
                h = prefix(some)
            (F.cross_entropy(head(h), labels) / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


# Several updates per batch, against recomputing


def reuse(rounds: int) -> None:
    """Two updates on one batch: the frozen prefix computed once, and computed twice."""
    for title, blocks, x, y in (cnn(), transformer()):
        print(f"\ntwo updates per batch, {title}: reuse / recompute, by cutoff")
        contest: Contest = {}
        for cutoff in range(1, len(blocks)):
            contest[f"reuse {cutoff}"] = two_updates(blocks, cutoff, x, y, recompute=False)
            contest[f"recompute {cutoff}"] = two_updates(blocks, cutoff, x, y, recompute=True)
        times = take_turns(contest, rounds)
        for cutoff in range(1, len(blocks)):
            reused, again = times[f"reuse {cutoff}"], times[f"recompute {cutoff}"]
            print(f"  cutoff {cutoff}: {ratio(reused, again)}")


def two_updates(
    blocks: nn.Sequential, cutoff: int, x: Tensor, y: Tensor, *, recompute: bool
) -> Callable[[], None]:
    blocks = copy.deepcopy(blocks)
    why = "this is the other side of the comparison" if recompute else None
    with mock.patch("dropmuon.optimizer.obstacle", return_value=why):
        optimizer = DropMuon(blocks, lr=1e-4, by=by_block, updates_per_batch=2)
    if recompute:
        warnings.filterwarnings("ignore", message=f".*{why}")

    def closure() -> None:
        optimizer.zero_grad()
        F.cross_entropy(blocks(x), y).backward()

    def step() -> None:
        optimizer.step(closure)

    def prepare() -> None:
        optimizer.activate(tuple(range(cutoff, len(blocks))))

    step()
    step.prepare = prepare  # type: ignore[attr-defined]
    return step


# The optimizer's own step, against other Muons

SHAPES = {
    "transformer, 2 blocks of width 384": [
        *[(384, 384)] * 8,
        *[(1536, 384)] * 2,
        *[(384, 1536)] * 2,
    ],
    "transformer, 6 blocks of width 128": [
        *[(128, 128)] * 24,
        *[(512, 128)] * 6,
        *[(128, 512)] * 6,
    ],
    "CNN 64-128-256": [(64, 9), (128, 576), (256, 1152), (10, 2304)],
    "100 of 32x32": [(32, 32)] * 100,
    "8 of 384x384": [(384, 384)] * 8,
    "4 of 512x512": [(512, 512)] * 4,
    "one of 1024x1024": [(1024, 1024)],
}


def against_float32(rounds: int) -> None:
    """The same iteration in the same precision: no contestant multiplies in bfloat16."""
    print("\noptimizer step: DropMuon / torch.optim.Muon with its iteration in float32")
    for title, shapes in SHAPES.items():
        contest = {
            "ours": muon_step(shapes, ours),
            "theirs": in_float32(muon_step(shapes, torch_muon)),
        }
        times = take_turns(contest, rounds)
        print(f"  {title:36} {ratio(times['ours'], times['theirs'])}")


def against_muon(rounds: int) -> None:
    """All layers move, 5 Newton-Schulz steps, Nesterov: like for like, in float32."""
    for title, shapes in SHAPES.items():
        contest = {
            "DropMuon": muon_step(shapes, ours),
            "torch.optim.Muon": muon_step(shapes, torch_muon),
            "torch.optim.Muon, float32": in_float32(muon_step(shapes, torch_muon)),
            "pytorch_optimizer.Muon": muon_step(shapes, other_muon),
        }
        times = take_turns(contest, rounds)
        print(f"\noptimizer step, {title}: DropMuon / other (goal: at most 1)")
        for name in list(contest)[1:]:
            print(f"  {name:26} {ratio(times['DropMuon'], times[name])}", flush=True)


Maker = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def muon_step(shapes: Sequence[tuple[int, int]], make: Maker) -> Callable[[], None]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape) / 10) for shape in shapes]
    optimizer = make(parameters)
    gradients = [torch.randn_like(p) for p in parameters]

    def prepare() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()

    def step() -> None:
        optimizer.step()

    step.prepare = prepare  # type: ignore[attr-defined]
    return step


def in_float32(step: Callable[[], None]) -> Callable[[], None]:
    """torch's own step with its cast to bfloat16 taken out: the same iteration in float32."""

    def step_in_float32() -> None:
        with mock.patch.object(Tensor, "bfloat16", lambda x: x.clone()):
            step()

    step_in_float32.prepare = step.prepare  # type: ignore[attr-defined]
    return step_in_float32


def ours(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return DropMuon(parameters, lr=1e-3, momentum=0.95, nesterov=True, sampler="full")


def torch_muon(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Muon(parameters, lr=1e-3, momentum=0.95, nesterov=True, weight_decay=0.0)


def other_muon(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    pytorch_optimizer = import_extra("pytorch_optimizer", "bench")
    group = {"params": list(parameters), "use_muon": True}
    optimizer: torch.optim.Optimizer = pytorch_optimizer.Muon(
        [group], lr=1e-3, momentum=0.95, nesterov=True
    )
    return optimizer


# Draw and freeze


def draw_and_freeze(rounds: int) -> None:
    """What choosing a set and toggling its flags costs, for 500 layers of two parameters."""
    layers = [nn.Linear(2, 2) for _ in range(500)]
    optimizer = DropMuon(nn.Sequential(*layers), sampler=Progressive())
    times, step = [], 0

    def choose() -> None:
        nonlocal step
        step += 1
        optimizer.activate(optimizer.draws.at(step, 500))

    for _ in range(20 * rounds):
        start = time.perf_counter()
        choose()
        times.append(time.perf_counter() - start)
    median, least = 1000 * statistics.median(times), 1000 * min(times)
    print(f"\ndraw + freeze, 500 layers: median {median:.3f} ms, least {least:.3f} ms (goal: 1 ms)")


# Timing


def take_turns(contest: Contest, rounds: int) -> dict[str, list[float]]:
    """Times of each contestant over the rounds; one warm-up, then strictly interleaved."""
    times: dict[str, list[float]] = {name: [] for name in contest}
    for number in range(rounds + 1):
        for name, step in contest.items():
            getattr(step, "prepare", lambda: None)()
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
            if number:
                times[name].append(seconds)
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    middle = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return f"{middle:5.2f} (minima: {min(ours) / min(theirs):.2f})"


if __name__ == "__main__":
    main()
