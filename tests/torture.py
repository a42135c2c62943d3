"""Kill commands of the lab with SIGKILL at random moments, and see that nothing is lost.

    python -m tests.torture [--kills 50] [--seed 0] [--only compare]

Each of `compare`, `race`, `sweep` and fetching is run once to its end. Then it is started, killed
after a random time, and started again, with --resume where there is something to resume, until it
ends by itself; what it has found must equal the unbroken run in everything but time. Every round
takes as many kills as it gets; rounds go on until the kills are used up. Exit code 1 if anything
differed, or could neither be resumed nor started again. It takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dropmuon.lab.run import RunDirectory
from tests.lab.data_server import Server, serving
from tests.lab.small_set import FIRST, SECOND, assert_complete
from tests.lab.train.runs import timeless

COMMON = shlex.split(
    "--dataset digits --model mlp --channels 32,32 --batch-size 128 --epochs 3 --seeds 2 "
    "--methods full,drop-muon:uniform,drop-muon:parts-2 --threads 1"
)
SWEEP = {
    "base": {"dataset": "digits", "model": "mlp", "epochs": 2, "batch_size": 128, "seeds": [0]},
    "grid": {"method": ["full", "drop-muon:uniform"], "lr": [0.1, 0.03]},
}
TIMES = {"seconds", "low", "high", "least", "most", "load"}
MOST_STARTS = 100


@dataclass(frozen=True)
class Target:
    """A command: how it starts and resumes, and what it has found in the end."""

    name: str
    start: Callable[[Path], list[str]]
    resume: Callable[[Path], list[str]]
    found: Callable[[Path], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="compare, race, sweep or fetch")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder, slow_server() as server:
        chosen = [t for t in targets(Path(folder), server) if options.only in (None, t.name)]
        findings = kills = 0
        whole = {target.name: unbroken(target, Path(folder)) for target in chosen}
        while kills < options.kills:
            for target in chosen:
                seconds, expected = whole[target.name]
                out = Path(folder) / f"{target.name}-{kills}"
                killed, result = torture(target, out, seconds, rng, options.kills - kills)
                kills += killed
                problem = "" if result == expected else f": {result!s:.300}"
                findings += bool(problem)
                print(f"{target.name}: killed {killed} times{problem or ', equal'}", flush=True)
                shutil.rmtree(out, ignore_errors=True)
    print(f"{kills} kills, {findings} findings")
    return int(findings > 0)


def torture(
    target: Target, out: Path, seconds: float, rng: random.Random, most: int
) -> tuple[int, Any]:
    """Kill a command until it gets through; return how often, and what it found."""
    kills = 0
    for _ in range(MOST_STARTS):
        command = target.resume(out) if kills else target.start(out)
        code, said = run(command, rng.uniform(0.0, seconds) if kills < most else None)
        if code == 0:
            return kills, target.found(out)
        if code == 2 and kills:  # nothing to resume yet: then it must be possible to start
            code, said = run(target.start(out), None)
            return kills, target.found(out) if code == 0 else f"exit {code}: {said}"
        if code != -9:
            return kills, f"exit {code}: {said}"
        kills += 1
    return kills, "it never ended"


def unbroken(target: Target, folder: Path) -> tuple[float, Any]:
    """Run a command to its end; return the time it took, and what it found."""
    out, start = folder / f"{target.name}-unbroken", time.monotonic()
    code, said = run(target.start(out), None)
    if code != 0:
        raise RuntimeError(f"{target.name} failed without being killed: {said}")
    return time.monotonic() - start, target.found(out)


def run(command: list[str], kill_after: float | None) -> tuple[int, str]:
    """Run a command; kill it after a while, unless it has ended before."""
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = process.communicate(timeout=kill_after)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
    return process.returncode, said


def targets(folder: Path, server: Server) -> Iterator[Target]:
    """Yield the four commands, small."""
    lab = ["-m", "dropmuon.cli"]
    grid = folder / "grid.json"
    grid.write_text(json.dumps(SWEEP))

    def sweep(out: Path) -> list[str]:
        return [*lab, "sweep", str(grid), "--out", str(out)]

    def fetch(out: Path) -> list[str]:
        return ["-c", FETCH, server.url("/{file}"), str(out)]

    yield Target(
        "compare",
        lambda out: [*lab, "compare", *COMMON, "--out", str(out)],
        lambda out: [*lab, "compare", "--resume", "--out", str(out)],
        lambda out: timeless(RunDirectory(out)),
    )
    yield Target(
        "race",
        lambda out: [*lab, "race", *COMMON, "--ladder", "0.5,1", "--tune", "2", "--out", str(out)],
        lambda out: [*lab, "race", "--resume", "--out", str(out)],
        race_results,
    )
    yield Target("sweep", sweep, sweep, sweep_results)
    yield Target("fetch", fetch, fetch, assert_complete)


FETCH = """
import sys
from pathlib import Path
from dropmuon.lab.data.cache import fetch_set
from dropmuon.lab.data.sources import Web, as_is
from tests.lab.small_set import small_set
fetch_set(small_set(Web(sys.argv[1], as_is)), Path(sys.argv[2]))
"""


def race_results(out: Path) -> list[dict[str, str]]:
    """Return the table of a race without times, and without what follows from them."""
    with (out / "results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] != "seconds"]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def sweep_results(out: Path) -> list[Any]:
    """Return the evaluations of all cells of a sweep."""
    cells = (RunDirectory(path.parent) for path in sorted(out.glob("cells/*/config.json")))
    return sorted((timeless(cell) for cell in cells), key=str)


@contextmanager
def slow_server() -> Iterator[Server]:
    """Serve the files of the small data set."""
    with serving() as server:
        server.content = {"/first": FIRST, "/second": SECOND}
        yield server


if __name__ == "__main__":
    sys.exit(main())
