"""Whether a step in parts takes the time that its operations say, and what brings it closer.

    python benchmarks/prefix.py [--rounds 9] [--compiled]

The figures of docs/benchmarks.md come from its output, kept in benchmarks/prefix.txt.

One of eight parts is for all layers, seven are for the head only, so that the forward pass of
frozen layers is most of a step. Each row does something to the model and times a step in parts
against a full step of the same model that accumulates over eight pieces; operations are counted.
All contestants take turns inside one process, and the tables show ratios.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import DropMuon
from dropmuon.lab.models import build, item_of
from dropmuon.samplers import Shares

PARTS = 8
Step = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compiled", action="store_true", help="compile blocks, which takes long")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.rounds} rounds")
    for title, x, y, rows in tasks(options.compiled):
        print(f"\nstep in {PARTS} parts, seven of them for the head only, {title}")
        print(f"  {'':32} time   operations   time of a full step, in pieces and in one")
        table(rows, x, y, options.rounds)


def tasks(compiled: bool) -> list[tuple[str, Tensor, Tensor, dict[str, nn.Sequential]]]:
    torch.manual_seed(0)
    cnn = build("cnn", (1, 28, 28), 10, (8, 16, 32))
    gpt = build("gpt", (64,), 256, (64, 64, 64, 64))
    channels_last = with_usual_pools(cnn)
    channels_first = copy.deepcopy(channels_last)
    channels_first.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    rows = {
        "channels first": channels_first,
        "channels last": channels_last,
        "channels last, ReLU in place": in_place(channels_last),
        "channels last, cheaper pooling": cnn,
    }
    texts = {"as it is": gpt}
    if compiled:
        rows["channels last, blocks compiled"] = by_compiled_blocks(channels_last)
        texts["blocks compiled"] = by_compiled_blocks(gpt)
    images = torch.rand(4096, 1, 28, 28), torch.randint(0, 10, (4096,))
    tokens = torch.randint(0, 256, (256, 64)), torch.randint(0, 256, (256, 64))
    return [
        ("CNN 8-16-32, 4096 images", *images, rows),
        ("GPT of 4 blocks of 64, 16,384 bytes", *tokens, texts),
    ]


def with_usual_pools(model: nn.Sequential) -> nn.Sequential:
    """The CNN as one usually writes it: convolution, ReLU, `nn.MaxPool2d`."""
    model = copy.deepcopy(model)
    for place in range(len(model) - 1):
        *before, _, relu = cast(nn.Sequential, model[place])
        model[place] = nn.Sequential(*before, relu, nn.MaxPool2d(2))
    return model


def in_place(model: nn.Sequential) -> nn.Sequential:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
    return model


def by_compiled_blocks(model: nn.Sequential) -> nn.Sequential:
    model = copy.deepcopy(model)
    for block in model:
        block.compile()
    return model


def table(rows: dict[str, nn.Sequential], x: Tensor, y: Tensor, rounds: int) -> None:
    contest: dict[tuple[str, str], Step] = {}
    for name, model in rows.items():
        contest[name, "parts"] = in_parts(model, x, y)
        contest[name, "pieces"] = in_pieces(model, x, y, PARTS)
        contest[name, "one"] = in_pieces(model, x, y, 1)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in contest}
    for _ in range(rounds):
        for key, step in contest.items():
            start = time.perf_counter()
            step()
            times[key].append(time.perf_counter() - start)
    first = next(iter(rows))
    for name in rows:
        counted = (operations(contest[first, kind]) for kind in ("parts", "pieces"))
        operated, whole = counted
        print(
            f"  {name:32} {ratio(times[name, 'parts'], times[name, 'pieces'])}   "
            f"{operated / whole:.2f}         "
            f"{ratio(times[name, 'pieces'], times[first, 'pieces'])}, "
            f"{ratio(times[name, 'one'], times[first, 'pieces'])}",
            flush=True,
        )


def in_parts(model: nn.Sequential, x: Tensor, y: Tensor) -> Step:
    model = copy.deepcopy(model)
    shares = [1 / PARTS] * (len(model) - 1) + [1.0]
    optimizer = DropMuon(model, lr=1e-4, by=item_of, sampler=Shares(shares), parts=PARTS)

    def step() -> None:
        for some, labels in optimizer.split(x, y):
            F.cross_entropy(model(some), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    return step


def in_pieces(model: nn.Sequential, x: Tensor, y: Tensor, pieces: int) -> Step:
    model = copy.deepcopy(model)
    optimizer = DropMuon(model, lr=1e-4, by=item_of, sampler="full")

    def step() -> None:
        for some, labels in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            (F.cross_entropy(model(some), labels) / pieces).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


def operations(step: Step) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def ratio(ours: list[float], theirs: list[float]) -> str:
    """The ratio of medians; drift of the machine cancels, since contestants took turns."""
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


if __name__ == "__main__":
    main()
