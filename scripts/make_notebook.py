"""Make examples/tutorial.ipynb from docs/tutorial.md: its text and code, executed, outputs kept.

    python scripts/make_notebook.py

It needs the extra "docs" and takes about two minutes. Then draw the pictures that show its numbers:
`python scripts/draw_pictures.py`.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial.md"
NOTEBOOK = ROOT / "examples/tutorial.ipynb"


def main() -> None:
    """Convert the page, run it in an empty directory, and write the notebook."""
    notebook = converted(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, resources=place, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran, and how long: new in every run
    nbformat.validate(notebook)
    NOTEBOOK.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def converted(page: str) -> nbformat.NotebookNode:
    """Return the page as a notebook: a cell per block of code, and per text between two."""
    cells = []
    for index, piece in enumerate(re.split(r"^```python\n(.*?)^```\n", page, flags=re.M | re.S)):
        make = nbformat.v4.new_code_cell if index % 2 else nbformat.v4.new_markdown_cell
        text = piece if index % 2 else relinked(piece)
        cells.append(make(text.strip(), id=f"cell-{index}"))
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def relinked(text: str) -> str:
    """Return text whose links start at examples/ instead of docs/."""
    inside = re.sub(r"\]\((?![a-z]+:|#|\.\./)", "](../docs/", text)
    return inside.replace("](../examples/", "](")


if __name__ == "__main__":
    main()
