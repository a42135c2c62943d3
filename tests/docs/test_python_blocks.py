"""Every Python block of the pages runs, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropmuon import plan
from tests.docs.pages import PAGES, blocks
from tests.float32_muon import zeropower_without_cast
from tests.norms.test_laws import TOLERANCE, check_facts

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]

pytestmark = [
    # torch itself, when it loads the default backend of torch.compile
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
    # the frameworks' own hints about losses, workers and devices
    pytest.mark.filterwarnings("ignore:.*loss_type", "ignore:.*pin_memory"),
    pytest.mark.filterwarnings("ignore::Warning:lightning"),
]

FRAMEWORKS = {"docs/frameworks.md": ("transformers", "lightning", "accelerate", "peft")}
"""What pages need besides the library itself."""

SMALLER = {
    "docs/tutorial.md": {
        "CONTEXT, BATCH = 64, 64, 128": "CONTEXT, BATCH = 16, 16, 16",
        "(2e11, 2.8e11, 4e11)": "(1.5e8, 2e8)",
    }
}
"""Sizes on pages that train for minutes, and those that do for a test."""


class Model(nn.Module):
    """A reader's model: an encoder of blocks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder(x))
        return found


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a reader has when a page begins; everything else a page imports or makes itself."""
    monkeypatch.chdir(tmp_path)
    # torch's own rounds to bfloat16, whose products are an illegal instruction on some virtual CPUs
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", zeropower_without_cast)
    defaults = cast(dict[str, Any], plan.__kwdefaults__)
    assert defaults["budget"] == 60.0
    monkeypatch.setitem(defaults, "budget", 2.0)  # seconds; the page says a minute
    torch.manual_seed(0)
    data = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(4)]
    x, y = data[0]
    return {
        "torch": torch,
        "F": F,
        "model": Model(),
        "x": x,
        "y": y,
        "loader": data,
        "batches": data,
        "path": tmp_path / "checkpoint.pt",
    }


def run(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the page's blocks; a traceback shows the line of the page."""
    for module in FRAMEWORKS.get(page, ()):
        pytest.importorskip(module, reason="needs pip install -e '.[frameworks]'")
    sources = ["\n" * (block.line - 1) + block.text for block in blocks(page, "python")]
    for size, smaller in SMALLER.get(page, {}).items():
        assert any(size in source for source in sources), size
        sources = [source.replace(size, smaller) for source in sources]
    for source in sources:
        exec(compile(source, page, "exec"), names)
    return names


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_blocks_of_a_page_run_in_order(page: str, given: dict[str, Any]) -> None:
    run(page, given)


def test_the_pages_that_teach_code_have_some() -> None:
    taught = {"README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/planning.md", "docs/theory.md"}
    taught |= {"docs/index.md", "docs/install.md", "docs/tutorial.md"}
    assert taught | FRAMEWORKS.keys() <= set(WITH_PYTHON)
    assert len(blocks("docs/theory.md", "python")) >= 7


def test_the_tutorial_compares_three_methods_at_equal_cost(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run("docs/tutorial.md", given)
    printed = capsys.readouterr().out
    rows = re.findall(r"^(all layers|parts|adaptive) +(\S+) operations +(\d+) steps", printed, re.M)
    steps = {(name, cost): int(count) for name, cost, count in rows}
    assert len(steps) == 6
    assert all(steps["parts", cost] > steps["all layers", cost] for cost in ("1.5e+08", "2.0e+08"))


def test_the_loop_of_the_readme_trains(given: dict[str, Any]) -> None:
    before = given["model"].head.weight.detach().clone()
    names = run("README.md", given)
    assert not torch.equal(names["model"].head.weight, before)


def test_the_guide_finds_the_group_whose_rate_it_changes(given: dict[str, Any]) -> None:
    names = run("docs/guide.md", given)
    changed = [group["layer"] for group in names["groups"] if group["lr"] == 0.003]
    assert changed == ["head"] * len(changed)
    assert changed


def test_the_guide_saves_and_loads_a_state_that_fits(given: dict[str, Any]) -> None:
    names = run("docs/guide.md", given)
    names["model"].load_state_dict(names["state"]["model"])
    names["optimizer"].load_state_dict(names["state"]["optimizer"])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (4, 9), (6, 2, 3, 3)], ids=str)
def test_the_norm_that_contributing_adds_obeys_the_laws(
    shape: tuple[int, ...], dtype: torch.dtype, given: dict[str, Any]
) -> None:
    norm = run("CONTRIBUTING.md", given)["EntrySum"](scale="rms")
    check_facts(norm, torch.randn(shape).to(dtype), TOLERANCE[dtype])
