"""Count how often the interval of a race holds the truth, in simulated races.

    python benchmarks/interval.py [--races 400] [--output benchmarks/interval.txt]

The loss falls as 0.3 + 0.25 cost^-0.9; the method does what the baseline does at its speed times
the cost. Every seed shifts both methods alike, by 0.02, and every run has noise of its own. The
truth is the distance without noise. Nothing depends on the machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from dropmuon.lab.analysis.equal_quality import Distance, Points, distances
from dropmuon.lab.ladder import LADDER

COSTS = np.array(LADDER)
SHIFT = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--races", type=int, default=400, help="of each kind")
    parser.add_argument("--output", type=Path, help="also write the raw output to this file")
    options = parser.parse_args()
    lines = [f"$ python {' '.join(sys.argv)}", "seeds  speed  noise  distance  median  covered"]
    for seeds in (2, 3, 5, 10):
        shares = []
        for speed in (1.0, 1.5):
            for noise in (0.005, 0.02):
                truth, median, share = simulate(seeds, speed, noise, options.races)
                shares.append(share)
                lines.append(
                    f"{seeds:5d}  {speed:5.1f}  {noise:5.3f}  {truth:8.3f}  {median:6.3f}"
                    f"  {100 * share:5.1f} %"
                )
        lines.append(f"{seeds:5d}  mean over these kinds: {100 * np.mean(shares):.1f} %")
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


def simulate(seeds: int, speed: float, noise: float, races: int) -> tuple[float, float, float]:
    """Return the true distance at a budget of 1, the median estimate, and the share covered."""
    rng = np.random.default_rng(0)
    truth = distance(quality(speed)[None], quality(1.0)[None]).least
    found = []
    for _ in range(races):
        shared = SHIFT * rng.normal(size=(seeds, 1))
        base, own = (
            quality(each) + shared + noise * rng.normal(size=(seeds, len(COSTS)))
            for each in (1.0, speed)
        )
        found.append(distance(own, base))
    covered = [f.low is not None and f.high is not None and f.low <= truth <= f.high for f in found]
    middles = [f.ratio if f.ratio is not None else max(f.least, 0.0) for f in found]
    return truth, float(np.median(middles)), float(np.mean(covered))


def quality(speed: float) -> np.ndarray:
    return np.asarray(-(0.3 + 0.25 * (speed * COSTS) ** -0.9))


def distance(own: np.ndarray, base: np.ndarray) -> Distance:
    cost = np.tile(COSTS, (len(own), 1))
    return distances(Points(cost, own), Points(cost, base))[LADDER.index(1.0)]


if __name__ == "__main__":
    main()
