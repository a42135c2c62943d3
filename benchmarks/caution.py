"""What races say of the law that turns noise into steps: how cautious must it be?

    python benchmarks/caution.py [RACE ...] [--output benchmarks/caution.txt]

A layer with the noise-to-signal ratio nu is said to need (1 + k nu/q) / (1 + k nu) as many steps
with a share q of the batch as with all of it. A race of `drop-muon:parts-M` against `full` tells
how many more steps were needed at equal test loss, and `drop-muon:adaptive` in it recorded nu along
its run. "caution" is the k with which the law agrees. "nu" is the ratio of the layers below the
head, averaged over the run. Where the race has only a bound on its distance, the row is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from dropmuon.lab.analysis.race import RaceResults, summarize_race
from dropmuon.lab.ladder import RaceDirectory

HEADER = "race                  budget  method    nu     speed-up  steps needed  caution"
MOST = 1000.0
RACES = Path(__file__).parents[1] / "docs" / "results" / "races"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("races", nargs="*", type=Path, help="by default those of the docs")
    parser.add_argument("--output", type=Path, help="also write the raw output to this file")
    options = parser.parse_args()
    lines = [f"$ python {' '.join(sys.argv)}", HEADER]
    found = [row for path in options.races or sorted(RACES.iterdir()) for row in rows(path)]
    lines += [text for text, _ in found]
    values = [value for _, value in found]
    ends = f"from {min(values):.2g} to {max(values):.2g}"
    lines.append(f"median caution {np.median(values):.2g}, {ends}")
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


def rows(path: Path) -> Iterator[tuple[str, float]]:
    race = RaceDirectory(path)
    results = summarize_race(race)
    for method in results.methods:
        parts = method.removeprefix("drop-muon:parts-")
        for rung in results.finished if parts.isdigit() else ():
            gap = results.gap(method, "loss", "operations", rung)
            if gap is None or gap.distance.ratio is None:
                continue
            nu = noise_along(race, rung)
            slowdown = steps_needed(results, method, rung, gap.distance.ratio)
            caution = implied(nu, 1 / int(parts), slowdown)
            yield (
                f"{path.name:21} {rung:6g}  parts-{parts}  {nu.mean():6.3f}  "
                f"{gap.distance.ratio:8.2f}  {slowdown:12.2f}  {caution:7.2g}",
                caution,
            )


def steps_needed(results: RaceResults, method: str, rung: float, ratio: float) -> float:
    """Return the steps that the method took over those that the baseline needs."""
    own, full = results.place(method, rung), results.place(results.baseline, rung)
    if own is None or full is None:
        raise ValueError(f"the race has no results of {method} at {rung}")
    return (own.steps / own.operations) / (ratio * full.steps / full.operations)


def noise_along(race: RaceDirectory, rung: float) -> np.ndarray:
    """Return nu (stages, layers below the head) of the adaptive method, mean over seeds.

    A stage is the time between two evaluations, which are equally far apart.
    """
    lines = (race.rung(rung).path / "evaluations.jsonl").read_text().splitlines()
    by_seed: dict[int, list[list[float]]] = {}
    for line in map(json.loads, lines):
        if line["method"] == "drop-muon:adaptive" and line["noise"] and line["step"] > 0:
            by_seed.setdefault(line["seed"], []).append(line["noise"][:-1])
    stages = min(map(len, by_seed.values()))
    found = np.array([each[:stages] for each in by_seed.values()])
    return np.asarray(np.median(found, axis=0))


def implied(nu: np.ndarray, share: float, slowdown: float) -> float:
    """Return the caution with which the law gives this slowdown; at most `MOST`, at least 0."""

    def excess(log_caution: float) -> float:
        k = math.exp(log_caution) * nu
        return float(((1 + k / share) / (1 + k)).mean()) - slowdown

    low, high = math.log(1 / MOST), math.log(MOST)
    if excess(low) > 0:
        return 0.0
    return MOST if excess(high) < 0 else math.exp(brentq(excess, low, high))


if __name__ == "__main__":
    main()
