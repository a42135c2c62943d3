"""Every gain on docs/choose.md stands in the section that its row links to."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import text_of

PAGE = "docs/choose.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text_of(PAGE).splitlines()
    if line.startswith("| ") and "](" in line
]


def section(link: str) -> str:
    """The text of a page, or of its section with the anchor of a link."""
    page, _, anchor = link.partition("#")
    text = text_of(f"docs/{page}")
    for heading in re.finditer(r"^(#+) (.*)$", text, re.M):
        if re.sub(r"[^\w -]", "", heading[2].lower()).replace(" ", "-") == anchor:
            level = len(heading[1])
            rest = text[heading.end() :]
            end = re.search(rf"^#{{1,{level}}} ", rest, re.M)
            return rest[: end.start() if end else None]
    assert not anchor, f"no section {anchor} on {page}"
    return text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_gain_is_where_its_row_says(row: list[str]) -> None:
    _, _, gain, shown_by = row
    links = re.findall(r"\]\(([^)]+)\)", shown_by)
    assert links
    text = "".join(section(link) for link in links)
    numbers = re.findall(r"\d+\.\d+", gain)
    assert [number for number in numbers if number not in text] == []


def test_the_page_has_all_four_questions() -> None:
    headings = re.findall(r"^## (Your \w+)$", text_of(PAGE), re.M)
    assert headings == ["Your batch", "Your model", "Your engine", "Your memory"]
    assert len(ROWS) > 25
