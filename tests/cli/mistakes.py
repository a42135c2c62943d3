"""Mistakes on the command line."""

from __future__ import annotations

import pytest

__all__ = ["wrong"]


def wrong(*arguments: str, words: str) -> object:
    """Return the parameters of a test: arguments, and words that the error has."""
    return pytest.param(arguments, words, id=" ".join(arguments)[:60])
