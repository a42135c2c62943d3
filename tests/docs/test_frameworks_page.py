"""docs/frameworks.md has a cell for each framework and feature, and each cell is a test."""

from __future__ import annotations

import re

from tests.contract.frameworks import test_features
from tests.contract.frameworks.runs import FRAMEWORKS
from tests.docs.pages import ROOT, text_of

PAGE = "docs/frameworks.md"


def cells() -> list[list[str]]:
    """The tests of each row of the matrix."""
    lines = [
        line for line in text_of(PAGE).splitlines() if line.startswith("|") and "test_" in line
    ]
    return [re.findall(r"`(test_\w+\[\w+\])`", line) for line in lines]


def test_every_cell_of_the_matrix_is_a_test() -> None:
    features = [name for name in vars(test_features) if name.startswith("test_")]
    assert sorted(test for row in cells() for test in row) == sorted(
        f"{feature}[{framework}]" for feature in features for framework in FRAMEWORKS
    )


def test_a_column_is_one_framework_and_a_row_one_feature() -> None:
    for row in cells():
        assert len({test.partition("[")[0] for test in row}) == 1
        assert [test.partition("[")[2].rstrip("]") for test in row] == list(FRAMEWORKS)
    assert len(cells()) == 9


def test_the_examples_exist() -> None:
    linked = re.findall(r"\]\(\.\./(examples/\w+\.py)\)", text_of(PAGE))
    assert len(linked) == 3
    assert all((ROOT / path).is_file() for path in linked)
