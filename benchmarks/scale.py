"""Predict how long steps take on 8 to 4096 accelerators, by the model of `dropmuon.theory`.

    python benchmarks/scale.py [--figure docs/scale.svg]

Prints the tables of docs/scale.md, kept in benchmarks/scale.txt. Nothing is measured or timed: all
numbers follow from shapes, from counted bytes and operations, and from published throughputs. They
are the same in every run. The figure needs Matplotlib (`pip install -e '.[plan]'`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from dropmuon.checks import import_extra
from dropmuon.theory import H100, Spread, StepCosts, StepTime, Weight, share_out, step_seconds

COUNTS = (8, 64, 512, 4096)
TOKENS, LENGTH = 8192, 1024
PARTS, TURNS = 4, 2
CRITICAL = 2e8 / 3.0 ** (1 / 0.21)
"""Tokens of a batch at which noise equals signal, at a loss of 3 (Kaplan et al., 2020)."""
CAUTION = 2.0
"""By how much the planner overestimates noise (`dropmuon.samplers.allocation.CAUTION`)."""


@dataclass(frozen=True)
class Step:
    """The active set of each part, the weights whose turn it is not, and when to reduce."""

    sets: Sequence[Sequence[int]]
    waiting: frozenset[int] = frozenset()
    reduce_each_part: bool = False


@dataclass(frozen=True, eq=False)
class Model:
    """A transformer: its parameters, its operations per token and layer, the length of inputs."""

    name: str
    weights: tuple[Weight, ...]
    passes: StepCosts
    length: int

    @property
    def every(self) -> tuple[int, ...]:
        return tuple(range(self.passes.num_layers))

    @property
    def parameters(self) -> int:
        return sum(weight.entries for weight in self.weights)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", help="where to draw, such as docs/scale.svg")
    options = parser.parse_args(arguments)
    for title, lines in tables():
        print(f"{title}\n")
        print("\n".join(lines), end="\n\n")
    if options.figure:
        draw(options.figure)


# Models


def gpt2(blocks: int, width: int, vocabulary: int, length: int, name: str = "GPT-2") -> Model:
    """GPT-2: a tied table, which moves with the head; queries, keys and values are apart."""
    square, wide = (width, width), (4 * width, width)
    matrices = [square] * 4 + [wide, wide[::-1]]
    vectors = [(width,)] * 9 + [(4 * width,)]
    stem, head = [(length, width)], [(width,), (width,), (vocabulary, width)]
    return transformer(name, blocks, stem, matrices, vectors, head, length)


def llama(
    blocks: int, width: int, inner: int, vocabulary: int, length: int, name: str = "Llama"
) -> Model:
    matrices = [(width, width)] * 4 + [(inner, width), (inner, width), (width, inner)]
    table = (vocabulary, width)
    return transformer(name, blocks, [table], matrices, [(width,)] * 2, [(width,), table], length)


def transformer(
    name: str,
    blocks: int,
    stem: Sequence[tuple[int, ...]],
    matrices: Sequence[tuple[int, int]],
    vectors: Sequence[tuple[int, ...]],
    head: Sequence[tuple[int, ...]],
    length: int,
) -> Model:
    """Layers are the stem, the blocks and the head, as with `by="block"` and `policy="muon"`.

    A matrix of (out, in) takes 2 out in operations per token in the forward pass, for its input
    gradient, and for its own; attention takes 4 length width, and twice that in the backward.
    """
    weights = [Weight(shape, 0) for shape in stem]
    for block in range(1, blocks + 1):
        weights += [Weight(shape, block, block, "whole") for shape in matrices]
        weights += [Weight(shape, block, block) for shape in vectors]
    weights += [Weight(shape, blocks + 1) for shape in head]
    of_block = 2.0 * sum(rows * columns for rows, columns in matrices)
    output, scores = 2.0 * head[-1][0] * head[-1][1], 4.0 * length * matrices[0][0]
    plain = np.array([0.0, *[of_block] * blocks, output])
    attention = np.array([0.0, *[scores] * blocks, 0.0])
    passes = StepCosts(0.0, plain + attention, plain + 2 * attention, 0 * plain, weight=plain)
    return Model(name, tuple(weights), passes, length)


MODELS = (
    gpt2(12, 768, 50257, LENGTH, "GPT-2 small"),
    llama(24, 2048, 5504, 32000, LENGTH, "Llama of 1.3B"),
    llama(32, 4096, 11008, 32000, LENGTH, "Llama 2 7B"),
)


# Methods: steps that are equally frequent


def full(model: Model) -> list[Step]:
    return [Step([model.every])]


def pieces(model: Model) -> list[Step]:
    """All layers, accumulated over as many pieces as there are parts."""
    return [Step([model.every] * PARTS)]


def one_set(model: Model) -> list[Step]:
    """One cutoff per step, uniform over all layers."""
    return [Step([model.every[cutoff:]]) for cutoff in model.every]


def parts(model: Model, reduce_each_part: bool) -> list[Step]:
    """All layers in one part, at any place, and the head alone in the others."""
    head = [model.every[-1:]] * (PARTS - 1)
    orders = [[*head[:place], model.every, *head[place:]] for place in range(PARTS)]
    return [Step(sets, reduce_each_part=reduce_each_part) for sets in orders]


def turns(model: Model) -> list[Step]:
    """A group of matrices of about equal cost moves at a time."""
    costs = [float(w.product) if w.needs == "whole" else 0.0 for w in model.weights]
    group = share_out(costs, TURNS)
    of_turn = [{i for i, cost in enumerate(costs) if cost and group[i] == n} for n in range(TURNS)]
    every = frozenset().union(*of_turn)
    return [Step([model.every], every - own) for own in of_turn]


FULL, IN_PARTS, IN_TURNS = "full Muon", f"{PARTS} parts", f"{TURNS} turns"
REDUCED_ONCE = f"{IN_PARTS}, reduced once"
METHODS: dict[str, Callable[[Model], list[Step]]] = {
    FULL: full,
    "one set": one_set,
    IN_PARTS: partial(parts, reduce_each_part=True),
    REDUCED_ONCE: partial(parts, reduce_each_part=False),
    IN_TURNS: turns,
    f"full, {PARTS} pieces": pieces,
}
OTHERS = [method for method in METHODS if method != FULL]


# Predictions


def hsdp(count: int) -> Spread:
    """Shards within a node, replicas across nodes."""
    return mixed(H100.node, count // H100.node)


def fsdp(count: int) -> Spread:
    return mixed(count, 1)


def ddp(count: int) -> Spread:
    return mixed(1, count)


def mixed(shards: int, replicas: int) -> Spread:
    """Parameters are gathered in bfloat16; gradients and momenta are float32."""
    return Spread(shards, replicas, gathered=2, reduced=4, exchanged=4)


WAYS: dict[str, Callable[[int], Spread]] = {"HSDP": hsdp, "FSDP2": fsdp, "DDP": ddp}


@cache
def times(model: Model, method: str, way: str, count: int, tokens: int = TOKENS) -> list[StepTime]:
    """Return the times of the steps of a method, which are equally frequent."""
    spread = WAYS[way](count)
    return [
        step_seconds(
            model.weights,
            model.passes,
            spread,
            H100,
            step.sets,
            tokens,
            waiting=step.waiting,
            reduce_each_part=step.reduce_each_part,
        )
        for step in METHODS[method](model)
    ]


def seconds(
    model: Model, method: str, way: str, count: int, tokens: int = TOKENS
) -> tuple[float, float]:
    """Return the mean time of a step, with communication hidden and with none hidden."""
    found = times(model, method, way, count, tokens)
    hidden = sum(each.overlapped for each in found) / len(found)
    return hidden, sum(each.apart for each in found) / len(found)


def relative(model: Model, method: str, way: str, count: int, tokens: int = TOKENS) -> list[float]:
    """Return step times over those of full Muon in one piece, hidden and apart."""
    own = seconds(model, method, way, count, tokens)
    whole = seconds(model, FULL, way, count, tokens)
    return [mine / theirs for mine, theirs in zip(own, whole, strict=True)]


def more_steps(count: int, tokens: int = TOKENS) -> float:
    """Return how many steps parts need for one of full updates, by the law of noise.

    (1 + nu/q) / (1 + nu) for a share q, nu being noise over signal of the whole batch.
    """
    noise = CAUTION * CRITICAL / (count * tokens)
    return (1 + noise * PARTS) / (1 + noise)


def pays_from(ratio: float) -> float:
    """Return the batch, in critical sizes, from which parts of this relative time pay."""
    return CAUTION * (PARTS * ratio - 1) / (1 - ratio) if ratio < 1 else math.inf


def fits(model: Model, way: str) -> bool:
    """Return whether parameters, gradients and momenta in 32 bits leave room in 80 GB."""
    return way != "DDP" or 12 * model.parameters < 60e9


# Tables


def tables() -> Iterator[tuple[str, list[str]]]:
    """Yield titles and tables in Markdown."""
    yield "Models", list(models())
    for way in WAYS:
        yield f"Steps with {way}, {TOKENS} tokens per accelerator", list(steps(way))
    yield "Full Muon with HSDP, in ms", list(composition("HSDP"))
    yield "Tokens per accelerator, 512 accelerators, HSDP", list(by_tokens(512))
    yield "Parts against noise, HSDP", list(with_noise())


def models() -> Iterator[str]:
    yield from heading("", "parameters", "layers", "matrices", "operations per token, forward")
    for model in MODELS:
        matrices = sum(weight.needs == "whole" for weight in model.weights)
        operations = f"{model.passes.forward.sum() / 1e9:.2f} x 10^9"
        yield row(model.name, f"{model.parameters:,}", len(model.every), matrices, operations)


def steps(way: str) -> Iterator[str]:
    yield from heading("model", "accelerators", "full Muon, ms", *OTHERS)
    for model in MODELS:
        if not fits(model, way):
            continue
        for count in COUNTS:
            whole = [1000 * each for each in seconds(model, FULL, way, count)]
            ratios = [between(relative(model, method, way, count)) for method in OTHERS]
            yield row(model.name, count, between(whole, 1), *ratios)


def composition(way: str) -> Iterator[str]:
    names = ("forward", "backward", "orthogonalize", "gather", "reduce", "exchange")
    yield from heading("model", "accelerators", *names)
    for model in MODELS:
        for count in COUNTS:
            found = times(model, FULL, way, count)[0]
            yield row(model.name, count, *(f"{1000 * getattr(found, name):.1f}" for name in names))


def by_tokens(count: int) -> Iterator[str]:
    yield from heading("model", "tokens", "full Muon, ms", *OTHERS)
    for model in MODELS:
        for tokens in (1024, 4096, 16384, 65536):
            whole = [1000 * each for each in seconds(model, FULL, "HSDP", count, tokens)]
            ratios = [
                between(relative(model, method, "HSDP", count, tokens))
                if tokens // len(METHODS[method](model)[0].sets) >= model.length
                else "-"
                for method in OTHERS
            ]
            yield row(model.name, tokens, between(whole, 1), *ratios)


def with_noise() -> Iterator[str]:
    names = [f"{model.name}: {what}" for model in MODELS for what in ("gain", "pays from")]
    yield from heading("accelerators", "batch, critical sizes", "steps", *names)
    for count in COUNTS:
        needed, found = more_steps(count), list[str]()
        for model in MODELS:
            variants = [relative(model, each, "HSDP", count) for each in (IN_PARTS, REDUCED_ONCE)]
            ratios = [min(each) for each in zip(*variants, strict=True)]
            found.append(between(1 / (ratio * needed) for ratio in ratios))
            found.append(between((pays_from(ratio) for ratio in ratios), 1))
        yield row(count, f"{count * TOKENS / CRITICAL:.2f}", f"{needed:.2f}", *found)


def heading(*names: str) -> Iterator[str]:
    yield row(*names)
    yield "|" + "---|" * len(names)


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def between(values: Iterable[float], digits: int = 2) -> str:
    """Return both extremes, hidden and apart."""
    return " / ".join("never" if value == math.inf else f"{value:.{digits}f}" for value in values)


# The figure

COLORS = {
    "one set": "#0072b2",
    IN_PARTS: "#d55e00",
    IN_TURNS: "#008f68",
    f"full, {PARTS} pieces": "#4a5160",
}
LINES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def draw(path: str) -> None:
    """Draw relative times over accelerators, a panel for each model and way."""
    look = {"svg.hashsalt": "scale", "svg.fonttype": "none", "font.size": 9}
    import_extra("matplotlib", "plan").rcParams.update(look)
    figure = import_extra("matplotlib.figure", "plan").Figure(figsize=(10, 8.4))
    panels = figure.subplots(len(WAYS), len(MODELS), sharex=True, sharey=True)
    for line, way in zip(panels, WAYS, strict=True):
        line[0].set_ylabel(f"{way}\nstep time, full Muon = 1")
        for axes, model in zip(line, MODELS, strict=True):
            panel(axes, model, way)
    for axes, model in zip(panels[0], MODELS, strict=True):
        axes.set_title(model.name)
    for axes in panels[-1]:
        axes.set_xlabel("accelerators")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(COLORS), frameon=False)
    note = (
        f"Predicted, not measured: the time of a step, whatever it achieves. H100 SXM, {TOKENS} "
        "tokens each.\nBands: communication hidden behind passes (solid) to not hidden (dashed)."
    )
    figure.text(0.5, 0.01, note, ha="center", va="bottom")
    figure.tight_layout(rect=(0, 0.05, 1, 0.965))
    figure.savefig(path, metadata={"Date": None})


def panel(axes: Any, model: Model, way: str) -> None:
    axes.axhline(1.0, color="#999999", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(COUNTS, COUNTS)
    axes.set_yticks([0.5, 0.7, 1.0, 1.4, 2.0, 2.8], ["0.5", "0.7", "1", "1.4", "2", "2.8"])
    axes.minorticks_off()
    axes.set_ylim(0.5, 2.8)
    if not fits(model, way):
        axes.text(0.5, 0.6, "does not fit", transform=axes.transAxes, ha="center", color="#666666")
        return
    for method, color in COLORS.items():
        once = way == "DDP" and method == IN_PARTS
        variant = REDUCED_ONCE if once else method
        hidden, apart = zip(*(relative(model, variant, way, n) for n in LINES), strict=True)
        axes.fill_between(LINES, hidden, apart, color=color, alpha=0.15, linewidth=0)
        axes.plot(LINES, apart, color=color, linewidth=1, linestyle="--")
        axes.plot(LINES, hidden, color=color, linewidth=1.6, label=method)


if __name__ == "__main__":
    main()
