"""Every number in the tables of docs/results.md follows from the raw files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from dropmuon.lab import analysis
from dropmuon.lab.analysis.equal_budget import tasks
from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.series import Split, Unit
from dropmuon.lab.run import RunDirectory

DOCS = Path(__file__).parents[3] / "docs"
FULL = {"full", "muon"}  # what raw files call full Drop-Muon, and what older ones did


def table(heading: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the header and the rows, by their first cell, of the table below a heading."""
    section = (DOCS / "results.md").read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return header[1:], {row[0]: row[1:] for row in rows if not row[0].startswith("the paper")}


def named(label: str, methods: Iterable[str]) -> str:
    """Return the method of a row."""
    name = label.split(",", maxsplit=1)[0]
    (found,) = {name, f"drop-muon:{name}", *(FULL if name == "full" else ())} & {*methods}
    return found


def shown(found: Speedup | None) -> str:
    """Return a speed-up as the page has it."""
    assert found is not None
    missed = f"missed {found.seeds - found.reached}/{found.seeds}"
    if found.method in FULL:
        return "1" if found.reached == found.seeds else missed
    if not found.ratios:
        return missed
    ratio = f"{found.ratio:.2f}"
    if found.low is not None:
        ratio += f" ({found.low:.2f}–{found.high:.2f})"
    return ratio if found.reached == found.seeds else f"{ratio}, {missed}"


def ended(final: Final | None) -> list[str]:
    """Return accuracies and costs as the page has them."""
    assert final is not None
    costs = (final.step_seconds_share, final.step_operations_share)
    return [
        f"{100 * final.train.mean:.1f} %, {100 * final.test.mean:.1f} %",
        "1, 1" if final.method in FULL else ", ".join(f"{cost:.2f}" for cost in costs),
    ]


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("MNIST", "mnist"),
        ("Fashion-MNIST", "fashion-mnist"),
        ("CIFAR-10", "cifar10"),
        ("CIFAR-10 without batch norm", "cifar10-plain"),
        ("A transformer", "gpt"),
    ],
)
def test_a_comparison_s_table_follows_from_its_run(heading: str, name: str):
    summary = analysis.summarize(RunDirectory(DOCS / "results" / name))
    header, rows = table(heading)
    targets = [float(cell.removesuffix(" %")) for cell in header[:-2]]
    for label, cells in rows.items():
        split: Split = "test" if name == "gpt" or label.endswith("test accuracy") else "train"
        unit: Unit = "operations" if "operations" in label else "seconds"
        method = named(label, summary.methods)
        found = [summary.speedup(method, target, split, unit) for target in targets]
        assert cells[:-2] == [shown(each) for each in found]
        assert cells[-2:] in (ended(summary.final(method)), ["", ""])


def test_the_table_of_tuned_methods_follows_from_its_runs():
    runs = [RunDirectory(path) for path in sorted((DOCS / "results" / "tuned").iterdir())]
    header, rows = table("Tuned learning rates, more baselines, random subsets")
    targets = [float(re.search(r"(\d+) %", cell)[1]) for cell in header[1:]]
    (task,) = tasks(runs)
    summaries = [analysis.summarize(run) for run in runs]
    names = {each.method: "full" if each.method in FULL else each.method for each in task.methods}
    assert set(names.values()) == set(rows)
    for tuned in task.methods:
        cells = rows[names[tuned.method]]
        expected = f"{100 * tuned.best.test:.1f} % ({tuned.best.settings['lr']:g})"
        assert cells[0].replace("*", "") == expected
        for target, cell in zip(targets, cells[1:], strict=True):
            assert cell.replace("*", "") == least_operations(tuned.method, target, summaries)


def least_operations(method: str, target: float, summaries: list[analysis.Results]) -> str:
    """Return the least mean operations of a learning rate that reached the target on all seeds."""
    means = []
    for summary in summaries:
        found = summary.speedup(method, target, "test", "operations")
        if found.reached == found.seeds:
            assert found.time is not None
            means.append(found.time)
    return f"{min(means) / 1e9:.1f}" if means else "missed"
