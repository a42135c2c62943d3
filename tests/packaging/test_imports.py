"""Without extras there are torch and NumPy alone, and what else is missing is said in one line."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
MODULES = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
"""Packages that are imported by another name."""

HIDDEN = sorted(
    MODULES.get(name, name)
    for extra in ("theory", "plan", "lab", "frameworks", "bench")
    for line in EXTRAS[extra]
    if (name := re.split(r"[\[>=]", line)[0]) not in ("dropmuon", "markupsafe", "jinja2")
)
"""What only extras bring; torch itself needs Jinja2."""

WITHOUT = f"""
import sys


class Without:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN!r}:
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)


sys.meta_path[:] = [Without([*sys.meta_path])]
"""
"""Hides packages from Python, as if they were not installed."""


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], check=False, capture_output=True, text=True
    )


def test_importing_the_package_imports_nothing_but_itself() -> None:
    code = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import dropmuon
new = {name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names
assert new == {"dropmuon"}, new
"""
    done = run(code, "-W", "error")
    assert done.returncode == 0, done.stderr


def test_the_optimizer_imports_nothing_that_torch_and_numpy_do_not() -> None:
    """Nor does it load what torch itself loads on demand, such as its compiler."""
    code = """
import sys
import numpy, torch
before = set(sys.modules)
from dropmuon import DropMuon, layer_groups, presets
new = set(sys.modules) - before
third = {name.partition(".")[0] for name in new} - sys.stdlib_module_names
assert third <= {"dropmuon", "numpy", "torch"}, third
heavy = [name for name in new if name.startswith(("torch._inductor", "torch._dynamo"))]
assert not heavy, heavy
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_steps_need_no_extra() -> None:
    code = """
import torch
from dropmuon import DropMuon
model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3)))
optimizer = DropMuon(model, sampler="adaptive", parts=2)
for _ in range(3):
    for part in optimizer.split(torch.randn(8, 6)):
        model(part).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(optimizer.steps)
"""
    done = run(WITHOUT + code, "-W", "error")
    assert done.stdout.strip() == "3", done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import dropmuon; dropmuon.theory", "theory"),
        ("from dropmuon import plan", "plan"),
        ("import dropmuon.integrations.transformers", "frameworks"),
        ("import dropmuon.integrations.lightning", "frameworks"),
    ],
)
def test_an_import_without_its_extra_names_the_extra(code: str, extra: str) -> None:
    done = run(WITHOUT + code)
    last = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(rf"ImportError: No module named .*; install the {extra} extra: .*", last)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["race"], "lab"),
        (["compare"], "lab"),
        (["reproduce", "mnist"], "lab"),
        (["sweep", "grid.yaml"], "lab"),
        (["report", "runs"], "lab"),
        (["data", "list"], "lab"),
        (["plan", "package.module:factory"], "plan"),
    ],
)
def test_a_command_without_its_extra_says_so_in_one_line(arguments: list[str], extra: str) -> None:
    done = run(f"{WITHOUT}\nfrom dropmuon.cli import main\nsys.exit(main({arguments!r}))")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"install the {extra} extra: pip install" in done.stderr
