"""Does the noise of a gradient, measured in the Euclidean norm, say what its LMO loses?

    python benchmarks/geometry.py [--output benchmarks/geometry.txt]

A step of unit length along the LMO's unit direction d of a gradient g lowers the loss by <G, d>, G
being the true gradient. From a share q of a batch g is noisier, and the step loses some of that.
"measured" is <G, d(g_q)> over <G, d(g_1)>, with the layer's own norm. "Euclidean" is what the
noise-to-signal ratio nu predicts for it, sqrt((1 + nu) / (1 + nu/q)), with nu from inner products,
as the optimizer measures it. "dual" is the same with nu from the layer's dual norm, of differences
and of means of pairs of gradients. G is the mean over 32 batches that are used for nothing else.
Nothing here depends on the speed of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.lab import data, models
from dropmuon.norms import Norm

SHARES = (1 / 8, 1 / 4, 1 / 2)
BATCHES, TRUTH = 16, 32
HEADER = "means over matrices      steps  q      nu of matrices     measured  Euclidean   dual"

Row = tuple[str, float, float, float]
Matrix = tuple[Tensor, Norm]


@dataclass(frozen=True)
class Case:
    """A model and its data, the size of a batch, and the steps after which to look."""

    title: str
    model: str
    channels: tuple[int, ...]
    dataset: str
    size: int
    after: tuple[int, ...]
    lr: float


CASES = (
    Case("CNN 8-16-32, 512", "cnn", (8, 16, 32), "fashion-mnist", 512, (5, 60, 240), 0.05),
    Case("CNN 8-16-32, 2048", "cnn", (8, 16, 32), "fashion-mnist", 2048, (5, 60), 0.05),
    Case("GPT 4 x 64, 4096 bytes", "gpt", (64,) * 4, "shakespeare", 64, (5, 60, 240), 0.02),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="also write the raw output to this file")
    options = parser.parse_args()
    lines = [f"$ python {' '.join(sys.argv)}", HEADER]
    print(HEADER)
    errors = []
    for case in CASES:
        for title, kept, *predictions in rows(case):
            lines.append(f"{title} {kept:9.3f} {predictions[0]:10.3f} {predictions[1]:6.3f}")
            print(lines[-1], flush=True)
            errors.append([abs(each - kept) for each in predictions])
    off = [statistics.mean(each) for each in zip(*errors, strict=True)]
    lines.append(f"mean distance from what is measured: Euclidean {off[0]:.3f}, dual {off[1]:.3f}")
    print(lines[-1])
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


def rows(case: Case) -> Iterator[Row]:
    torch.manual_seed(0)
    found = data.load(case.dataset)
    model = models.build(case.model, found.shape, found.num_classes, case.channels)
    optimizer = DropMuon(
        model,
        lr=case.lr,
        momentum=0.9,
        sampler="full",
        by=models.item_of,
        policy="muon" if case.model == "gpt" else "spectral",
    )
    members = [m for m in optimizer.roster.members() if m.parameter.dim() > 1]
    matrices = [(m.parameter, m.norm) for m in members if isinstance(m.norm, Norm)]
    for start, stop in pairwise((0, *case.after)):
        for _ in range(start, stop):
            gradients(model, found, matrices, case.size)
            optimizer.step()
        yield from measured(case, stop, model, found, matrices)


def measured(
    case: Case, steps: int, model: nn.Module, found: data.Data, matrices: list[Matrix]
) -> Iterator[Row]:
    """Return a row per share: means over batches and matrices."""
    truth = mean([gradients(model, found, matrices, case.size) for _ in range(TRUTH)])
    whole = [gradients(model, found, matrices, case.size) for _ in range(BATCHES)]
    euclidean = [nu_by_products([g[k] for g in whole]) for k in range(len(matrices))]
    dual = [nu_by_dual(norm, [g[k] for g in whole]) for k, (_, norm) in enumerate(matrices)]
    best = progress(matrices, truth, whole)
    for q in SHARES:
        some = [gradients(model, found, matrices, round(q * case.size)) for _ in range(BATCHES)]
        kept = [a / b for a, b in zip(progress(matrices, truth, some), best, strict=True)]
        says = [statistics.mean(predicted(nu, q) for nu in each) for each in (euclidean, dual)]
        spread = f"{min(euclidean):.3f} to {max(euclidean):.3f}"
        yield (
            f"{case.title:24} {steps:5}  {q:<5.3g}  {spread:18}",
            statistics.mean(kept),
            says[0],
            says[1],
        )


def gradients(
    model: nn.Module, found: data.Data, matrices: list[Matrix], size: int
) -> list[Tensor]:
    """Return the gradients over a random batch; they stay in the parameters, too."""
    model.zero_grad()
    inputs, targets = found.train.batch(torch.randint(len(found.train), (size,)))
    F.cross_entropy(model(inputs), targets).backward()
    return [p.grad.clone() for p, _ in matrices if p.grad is not None]


def progress(
    matrices: list[Matrix], truth: list[Tensor], batches: list[list[Tensor]]
) -> list[float]:
    """Return the mean of <G, d(g)> over batches, of each matrix."""
    return [
        statistics.mean(float((truth[k] * norm.unit_direction(g[k])).sum()) for g in batches)
        for k, (_, norm) in enumerate(matrices)
    ]


def mean(batches: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(each).mean(0) for each in zip(*batches, strict=True)]


def nu_by_products(found: list[Tensor]) -> float:
    """The mean square exceeds the mean inner product of pairs, the signal, by the noise."""
    flat = torch.stack([each.flatten() for each in found])
    products = flat @ flat.T
    squares = float(products.diagonal().mean())
    n = len(found)
    signal = float(products.sum() - products.diagonal().sum()) / (n * (n - 1))
    return max(squares - signal, 0.0) / max(signal, 1e-12)


def nu_by_dual(norm: Norm, found: list[Tensor]) -> float:
    """The same with the squared dual norm of half the difference, and of the mean, of pairs.

    The mean of a pair has half the noise of one, and so has half their difference.
    """
    pairs = list(zip(found[::2], found[1::2], strict=True))
    half = statistics.mean(float(norm.dual((a - b) / 2)) ** 2 for a, b in pairs)
    both = statistics.mean(float(norm.dual((a + b) / 2)) ** 2 for a, b in pairs)
    return 2 * half / max(both - half, 1e-12)


def predicted(nu: float, q: float) -> float:
    return float(((1 + nu) / (1 + nu / q)) ** 0.5)


if __name__ == "__main__":
    main()
