"""Every table of races in docs/results.md follows from the raw files beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dropmuon.lab.analysis.equal_quality import Distance
from dropmuon.lab.analysis.race import RaceResults, summarize_race
from dropmuon.lab.analysis.series import UNITS
from dropmuon.lab.ladder import RaceDirectory

DOCS = Path(__file__).parents[3] / "docs"
RACES = sorted(path.parent for path in DOCS.glob("results/races/*/race.json"))


def shown(found: Distance) -> str:
    """Return a distance as the page has it."""
    low, high = found.low or 0.0, found.high or float("inf")
    if found.most == float("inf"):
        return f"> {found.least:.2f} ({low:.2f})"
    if found.least == 0:
        return f"< {found.most:.2f} ({high:.2f})"
    if low == 0:
        return f"{found.least:.2f} ({high:.2f} or less)"
    end = f"–{high:.2f}" if high < float("inf") else " or more"
    return f"{found.least:.2f} ({low:.2f}{end})"


def rows(results: RaceResults) -> Iterator[list[str]]:
    """Yield the rows of a race: quality of every method, and distances of all but the baseline."""
    yield ["times the budget", *(f"{rung:g}" for rung in results.finished)]
    for method in results.methods:
        name = method.removeprefix("drop-muon:")
        places = [results.place(method, rung) for rung in results.finished]
        yield [
            f"{name}: test loss{' in bits per byte' if results.in_bits else ', accuracy'}",
            *(
                f"{place.loss.mean:.3f}"
                + ("" if results.in_bits else f", {100 * place.accuracy.mean:.1f} %")
                for place in places
                if place is not None and place.loss is not None
            ),
        ]
        for unit in UNITS if method != results.baseline else ():
            gaps = [results.gap(method, "loss", unit, rung) for rung in results.finished]
            yield [
                f"{name}: {unit} that full needs",
                *(shown(gap.distance) for gap in gaps if gap is not None),
            ]


def table(results: RaceResults) -> str:
    """Return the table in Markdown."""
    header, *others = rows(results)
    lines = [header, ["---"] * len(header), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@pytest.mark.parametrize("path", RACES, ids=lambda path: path.name)
def test_the_table_of_a_race_follows_from_its_files(path: Path) -> None:
    assert table(summarize_race(RaceDirectory(path))) in (DOCS / "results.md").read_text()


TASKS = {
    "mnist": "MNIST, CNN 8-16-32, 8192 per batch",
    "fashion-mnist-8192": "Fashion-MNIST, the same CNN, 8192",
    "cifar10": "CIFAR-10, the same CNN with batch norm, 8192",
    "fashion-mini": "7000 images of Fashion-MNIST, the same CNN, 3500",
    "gpt": "GPT of 4 blocks of 64 on bytes, 16,384",
    "finetune": "the same GPT, fine-tuned from another text, 16,384",
}
"""The races of the summary at the top of the page, in its order, by directory."""


def summary() -> str:
    """Return the table of speed-ups at equal test loss: every budget but the largest of a race.

    There, the baseline has no more to spend, and nothing but a bound near 1 can be known.
    """
    methods = ("parts-8", "adaptive")
    header = ["task, batch", "full steps", *(f"{m}: {unit}" for m in methods for unit in UNITS)]
    lines = [header, ["---"] * len(header)]
    for name, task in TASKS.items():
        results = summarize_race(RaceDirectory(DOCS / "results" / "races" / name))
        for rung in results.finished[:-1]:
            place = results.place("full", rung)
            gaps = [
                results.gap(f"drop-muon:{method}", "loss", unit, rung)
                for method in methods
                for unit in UNITS
            ]
            cells = [shown(gap.distance) for gap in gaps if gap is not None]
            steps = "" if place is None else f"{place.steps:g}"
            lines.append([task if rung == results.finished[0] else "", steps, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_the_summary_follows_from_the_files_of_all_races() -> None:
    assert summary() in (DOCS / "results.md").read_text()
