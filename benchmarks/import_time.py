"""What imports cost, each in a process of its own: seconds, and seconds of CPU.

    python benchmarks/import_time.py [--rounds 15]

Raw output of the figures in CONTRIBUTING.md: benchmarks/import_time.txt. The least is the one to
look at: what else the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys

IMPORTS = {
    "import torch": ("", "import torch"),
    "import dropmuon": ("", "import dropmuon"),
    "DropMuon, beyond torch and NumPy": ("import numpy, torch", "from dropmuon import DropMuon"),
    "the page of dropmuon --help": (
        "",
        "import dropmuon.cli.parser as p; p.make_parser().format_help()",
    ),
}
"""What is timed: what comes before, outside of the clock, and what is inside."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    version = output("import torch; print(torch.__version__)")
    print(f"Python {platform.python_version()}, torch {version}, {options.rounds} rounds; in ms")
    for name, (before, timed) in IMPORTS.items():
        seconds(before, timed)  # writes bytecode, as an installation does
        rows = [seconds(before, timed) for _ in range(options.rounds)]
        shown = [
            f"least {min(c):.0f}, median {statistics.median(c):.0f}"
            for c in zip(*rows, strict=True)
        ]
        print(f"{name}: {shown[0]}; CPU: {shown[1]}", flush=True)


def seconds(before: str, timed: str) -> tuple[float, float]:
    """Return milliseconds, and milliseconds of CPU."""
    start = "start = time.perf_counter(), time.process_time()"
    shown = "print(time.perf_counter() - start[0], time.process_time() - start[1])"
    wall, cpu = output(f"import time\n{before}\n{start}\n{timed}\n{shown}").split()
    return 1000 * float(wall), 1000 * float(cpu)


def output(code: str) -> str:
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, text=True, env=variables).strip()


if __name__ == "__main__":
    main()
