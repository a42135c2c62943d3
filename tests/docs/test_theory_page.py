"""What the page about the theory must say; its examples run in test_python_blocks.py."""

from __future__ import annotations

import inspect

import pytest

from dropmuon import theory
from tests.docs.pages import text_of

FUNCTIONS = [name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_stands_on_the_page(name: str) -> None:
    assert f"`{name}" in text_of("docs/theory.md")


def test_the_page_says_which_printed_formula_is_not_followed() -> None:
    text = " ".join(text_of("docs/theory.md").split())
    assert "## Optimal probabilities" in text
    assert "gives the same with L1 in place of L0" in text
