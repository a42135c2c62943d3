"""The notebook is the tutorial, executed, and pages and pictures show what it printed."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks, text_of

NOTEBOOK: dict[str, Any] = json.loads(text_of("examples/tutorial.ipynb"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
DRAWING = runpy.run_path(str(ROOT / "scripts/draw_pictures.py"))


def printed() -> str:
    outputs = [output for cell in CODE for output in cell["outputs"]]
    return "".join("".join(output["text"]) for output in outputs)


def test_its_code_is_that_of_the_page() -> None:
    assert ["".join(cell["source"]) for cell in CODE] == [
        block.text.strip() for block in blocks("docs/tutorial.md", "python")
    ]


def test_its_text_is_that_of_the_page() -> None:
    pytest.importorskip("nbclient", reason="needs pip install -e '.[docs]'")
    making = runpy.run_path(str(ROOT / "scripts/make_notebook.py"))
    made = making["converted"](text_of("docs/tutorial.md"))
    assert ["".join(cell["source"]) for cell in NOTEBOOK["cells"]] == [
        cell.source for cell in made.cells
    ]


def test_it_ran_from_top_to_bottom_without_an_error() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    kinds = {output["output_type"] for cell in CODE for output in cell["outputs"]}
    assert kinds == {"stream"}
    assert "stderr" not in {output["name"] for cell in CODE for output in cell["outputs"]}


def test_the_tutorial_shows_what_it_printed() -> None:
    page = text_of("docs/tutorial.md")
    shown = re.findall(r"^\| (\S.*): steps, bits per byte \| (.*) \|$", page, re.M)
    ran = re.findall(r"^(\S.*?) +\S+ operations +(\d+) steps +(\S+) bits", printed(), re.M)
    assert [(name, cell) for name, row in shown for cell in row.split(" | ")] == [
        (name, f"{steps}, {bits}") for name, steps, bits in ran
    ]
    curves = DRAWING["curves"](text_of("examples/tutorial.ipynb"))
    ratio = DRAWING["distance"](curves["all layers"], *curves["parts"][0])
    assert f"all layers need {ratio:.2f} times as many" in page
    costs = re.findall(r"down to (\S+) +forward (\S+)  backward (\S+)", printed())
    backward = {name: cost for name, _, cost in costs}
    assert (
        f"the forward pass takes {costs[0][1]}, a backward down to the stem {backward['stem']}"
        in page
    )
    assert f"(`blocks.2`) {backward['blocks.2']}, and for the head alone {backward['head']}" in page


def test_torch_muon_and_the_preset_train_alike() -> None:
    losses = [float(loss) for loss in re.findall(r"step \d: loss (\S+)", printed())]
    assert losses[:3] == pytest.approx(losses[3:], abs=0.005)  # torch's in bfloat16
    assert f": {losses[0]:.2f}, {losses[1]:.2f}, {losses[2]:.2f}." in text_of("docs/tutorial.md")


def test_pictures_are_those_that_the_script_draws() -> None:
    pictures: Callable[[], Mapping[str, str]] = DRAWING["pictures"]
    for name, picture in pictures().items():
        assert text_of(f"docs/pictures/{name}") == picture, "run python scripts/draw_pictures.py"
    assert {path.name for path in (ROOT / "docs/pictures").iterdir()} == pictures().keys()
