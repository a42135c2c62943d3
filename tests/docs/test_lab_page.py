"""What docs/lab.md and the examples name exists and is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dropmuon.lab import data
from dropmuon.lab.methods import method_names
from dropmuon.lab.models import MODELS
from dropmuon.lab.sweep import read_spec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lab.md").read_text()


def test_every_data_set_model_and_method_is_in_the_page() -> None:
    for name in [
        *data.NAMES,
        *MODELS,
        *(each.removeprefix("drop-muon:") for each in method_names()),
    ]:
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("path", sorted((ROOT / "examples/sweeps").iterdir()), ids=lambda p: p.stem)
def test_example_sweeps_are_accepted(path: Path) -> None:
    assert read_spec(path).cells()
