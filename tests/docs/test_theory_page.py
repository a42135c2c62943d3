"""What the page about the theory must say; its examples run in test_python_blocks.py."""

from __future__ import annotations

from tests.docs.pages import text_of


def test_the_page_says_which_printed_formula_is_not_followed() -> None:
    text = " ".join(text_of("docs/theory.md").split())
    assert "## Optimal probabilities" in text
    assert "gives the same with L1 in place of L0" in text
