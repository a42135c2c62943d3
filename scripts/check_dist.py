"""Install each archive into an environment of its own, and see that it works there.

    python scripts/check_dist.py dist/*

An environment has torch and NumPy, and nothing of dropmuon's extras. `make dist` runs this after
the archives are built.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 6_000_000
"""Bytes that an archive may have."""

STEPS = """
import torch
import dropmuon
from dropmuon import DropMuon

model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
optimizer = DropMuon(model, lr=0.1, parts=2)
before = model[0].weight.detach().clone()
for _ in range(4):
    for part in optimizer.split(torch.randn(8, 8)):
        model(part).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
assert not torch.equal(before, model[0].weight)
print("   ", dropmuon.__version__, "with torch", torch.__version__)
"""

LACKING = {
    "import dropmuon; dropmuon.theory": "theory",
    "import dropmuon; dropmuon.plan": "plan",
    "import dropmuon.integrations.transformers": "frameworks",
    "import dropmuon.integrations.lightning": "frameworks",
}
"""Code, and the extra that the last line of its error must name."""


def main() -> None:
    """Check every archive that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", nargs="+", type=Path)
    for archive in parser.parse_args().archives:
        check(archive.resolve())
    print("all is well")


def check(archive: Path) -> None:
    """Exit with a message at the first thing that is wrong with an archive."""
    size = archive.stat().st_size
    print(f"{archive.name}: {size / 1e6:.2f} MB", flush=True)
    if size > MOST:
        sys.exit(f"{archive} has {size} bytes, more than {MOST}")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        python = str(programs / "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run([*pip, "install", "-c", str(ROOT / "constraints.txt"), str(archive)], folder)
        run([*pip, "check"], folder)
        run([python, "-W", "error", "-c", "import dropmuon"], folder)
        print(run([python, "-W", "error", "-c", STEPS], folder), end="", flush=True)
        for code, extra in LACKING.items():
            refused([python, "-c", code], extra, folder)
        program = str(programs / "dropmuon")
        run([program, "--help"], folder)
        run([program, "doctor"], folder)
        for command in (["race"], ["data", "list"], ["report", "."]):
            said = refused([program, *command], "lab", folder)
            if said.count("\n") != 1:
                sys.exit(f"dropmuon {command[0]} must say one line, got\n{said}")
        refused([program, "plan", "package.module:factory"], "plan", folder)


def run(command: list[str], folder: str) -> str:
    """Return the output of a command that must succeed, away from the source tree."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def refused(command: list[str], extra: str, folder: str) -> str:
    """Return the error of a command that must fail, and whose last line must name the extra."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    last = done.stderr.strip().splitlines()[-1:]
    if not done.returncode or not last or f"install the {extra} extra" not in last[0]:
        sys.exit(f"{' '.join(command)} must name the extra {extra}, got\n{done.stderr}")
    return done.stderr


if __name__ == "__main__":
    main()
