"""The results of a comparison: from the files of a run to the paper's metrics and a verdict."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dropmuon.lab.analysis import wording
from dropmuon.lab.analysis.metrics import Final, Speedup, finals, speedups
from dropmuon.lab.analysis.series import (
    SPLITS,
    UNITS,
    Curve,
    Split,
    Unit,
    has_ended,
    normalized_curves,
    trials,
)
from dropmuon.lab.run import Evaluation, RunDirectory, methods_in
from dropmuon.output import write_json, write_text

__all__ = ["Load", "Results", "comparison", "headline", "summarize", "verdict", "write_results"]


@dataclass(frozen=True)
class Load:
    """The machine's load average over all evaluations."""

    mean: float
    greatest: float


@dataclass(frozen=True)
class Results:
    """The numbers of one comparison.

    Attributes:
        methods: in the order requested, whether they have evaluations or not.
        targets: accuracies in percent, ascending.
        planned: how many trials were requested, a trial being a method on a seed.
        unfinished: the trials that have not completed all epochs, as (method, seed).
        finals: one per method that has evaluations; likewise the rest.
    """

    baseline: str
    methods: tuple[str, ...]
    targets: tuple[float, ...]
    planned: int
    unfinished: tuple[tuple[str, int], ...]
    load: Load | None
    finals: tuple[Final, ...]
    speedups: tuple[Speedup, ...]
    curves: tuple[Curve, ...]

    @property
    def in_bits(self) -> bool:
        """Whether the quality of methods is in bits per byte, as it is for text."""
        return any(each.in_bits for each in self.finals)

    def final(self, method: str) -> Final | None:
        """Return where a method ended, or None before its first evaluation."""
        return next((each for each in self.finals if each.method == method), None)

    def speedup(
        self, method: str, target: float, split: Split = "train", unit: Unit = "seconds"
    ) -> Speedup | None:
        """Return one time-to-target ratio."""
        key = (method, target, split, unit)
        found = (e for e in self.speedups if (e.method, e.target, e.split, e.unit) == key)
        return next(found, None)


def summarize(run: RunDirectory) -> Results:
    """Compute all results from the files of a run, finished or not."""
    config, evaluations = run.config, run.evaluations()
    asked = [str(method) for method in config.get("methods", [])]
    methods = tuple(dict.fromkeys([*asked, *methods_in(evaluations)]))
    targets = tuple(sorted({float(target) for target in config.get("targets", [])}))
    baseline = str(config.get("baseline") or (methods[0] if methods else ""))
    evaluations.sort(key=lambda each: methods.index(each.method))
    pairs = [(split, unit) for split in SPLITS for unit in UNITS]
    unfinished, planned = _unfinished(config, methods, evaluations)
    return Results(
        baseline=baseline,
        methods=methods,
        targets=targets,
        planned=planned,
        unfinished=unfinished,
        load=_load(evaluations),
        finals=tuple(finals(evaluations, baseline)),
        speedups=tuple(
            each for pair in pairs for each in speedups(evaluations, baseline, targets, *pair)
        ),
        curves=tuple(
            each for pair in pairs for each in normalized_curves(evaluations, baseline, *pair)
        ),
    )


def write_results(run: RunDirectory, results: Results) -> None:
    """Write results.json and results.csv into the directory of the run."""
    write_json(
        run.path / "results.json", {"format": 1, "verdict": verdict(results)} | _json(results)
    )
    write_text(run.path / "results.csv", _csv(results.speedups))


def verdict(results: Results) -> str:
    """Return the outcome in one sentence: the best challenger at the highest target compared."""
    found = headline(results)
    if found is not None:
        return wording.sentence(found, results.baseline)
    if not results.finals:
        return "Nothing was evaluated yet."
    if len(results.methods) == 1:
        return f"{results.baseline} ran alone; there is nothing to compare it with."
    best = max(results.finals, key=_quality)
    reached = wording.finals(best)
    return f"No target was reached by two methods; {best.method} ended best, at {reached}."


def comparison(results: Results) -> str:
    """Return how the final quality of the verdict's method compares with the baseline's."""
    found, base = headline(results), results.final(results.baseline)
    own = results.final(found.method) if found else None
    return "" if own is None or base is None else wording.comparison(own, base)


def headline(results: Results, split: Split = "train", unit: Unit = "seconds") -> Speedup | None:
    """Return the highest target that a challenger and the baseline reached, by its best challenger.

    A target that both reached on all seeds comes before one that some missed; among challengers,
    the one that reached it on most seeds, and among those the soonest. Where nothing can be
    compared, the lowest target that the baseline reached and all others missed.
    """
    challengers = [
        each
        for each in results.speedups
        if each.method != results.baseline and (each.split, each.unit) == (split, unit)
    ]
    compared = [each for each in challengers if each.ratio is not None]
    if compared:
        return max(
            compared,
            key=lambda e: (_is_whole(e), e.target, e.reached / e.seeds, e.ratio or 0.0),
        )
    lost = [each for each in challengers if each.baseline_reached and not each.reached]
    return min(lost, key=lambda each: each.target, default=None)


def _quality(final: Final) -> float:
    """Return what ranks methods without a target: accuracy, or for text bits per byte."""
    if not final.in_bits:
        return final.test.mean
    return -math.inf if final.loss is None else -final.loss.mean


def _is_whole(found: Speedup) -> bool:
    return found.reached == found.seeds and found.baseline_reached == found.baseline_seeds


def _unfinished(
    config: dict[str, Any], methods: Sequence[str], evaluations: Sequence[Evaluation]
) -> tuple[tuple[tuple[str, int], ...], int]:
    by_method = trials(evaluations)
    seen = {seed for of_seed in by_method.values() for seed in of_seed}
    seeds = sorted({int(seed) for seed in config.get("seeds", [])} | seen)
    epochs = float(config.get("epochs") or 0.0)
    wanted = [(method, seed) for method in methods for seed in seeds]
    ended = {
        (method, seed)
        for method, of_seed in by_method.items()
        for seed, trial in of_seed.items()
        if has_ended(trial, epochs)
    }
    return tuple(trial for trial in wanted if trial not in ended), len(wanted)


def _load(evaluations: Sequence[Evaluation]) -> Load | None:
    loads = [each.load for each in evaluations if each.load is not None]
    return Load(sum(loads) / len(loads), max(loads)) if loads else None


def _json(results: Results) -> dict[str, Any]:
    content = asdict(results)
    for curve in content["curves"]:
        for line in ("time", "mean", "low", "high"):
            curve[line] = [round(value, 6) for value in curve[line]]
    return content


def _csv(found: Sequence[Speedup]) -> str:
    columns = [field.name for field in fields(Speedup) if field.name != "ratios"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*columns, "compared"])
    writer.writerows(_values(found, columns))
    return file.getvalue()


def _values(found: Sequence[Speedup], columns: Sequence[str]) -> Iterator[list[Any]]:
    for each in found:
        values = [getattr(each, column) for column in columns]
        yield ["" if value is None else value for value in values] + [len(each.ratios)]
