"""The pages of the documentation: their fenced blocks and the code in their sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "blocks", "inline_code", "text_of"]

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language (empty if none is named), its text, and its first line."""

    page: str
    language: str
    text: str
    line: int


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    return [block for block in _all_blocks(page) if block.language in languages]


def _all_blocks(page: str) -> Iterator[Block]:
    text = text_of(page)
    for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S):
        yield Block(page, found[1], found[2], text[: found.start(2)].count("\n") + 1)


def inline_code(page: str) -> list[str]:
    """Return what stands between single backticks, outside of fenced blocks."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
