"""What the site of MkDocs needs beside docs/: files from outside of it, links, and equations.

Pages are plain Markdown that any forge shows: links are paths in the repository, equations stand
between dollars. Here links become those of the site, and equations MathML, which browsers draw
without a script or a font from elsewhere. In docstrings, Sphinx's notation of equations is read.
"""

from __future__ import annotations

import html
import posixpath
import re
import textwrap
import unicodedata
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    f"{name}.md": f"{name.lower()}.md"
    for name in ("CHANGELOG", "CONTRIBUTING", "RELEASING", "SECURITY")
}
"""Pages outside of docs/, and their names on the site."""

COPIED = (
    *("benchmarks/*.txt", "examples/*.ipynb", "examples/sweeps/*.yaml", "tests/docs/*.py"),
    "CITATION.cff",
)
"""Files outside of docs/ that pages link to."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages, examples and raw output from outside of docs/, and lists of raw files."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=_shown(path)))
    for pattern in COPIED:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for folder in sorted(each for each in (ROOT / "docs/results").rglob("*") if each.is_dir()):
        uri = folder.relative_to(ROOT / "docs").as_posix()
        files.append(File.generated(config, f"{uri}/index.md", content=_listed(folder, uri)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between those of the site."""
    here = page.file.src_uri
    origin = {uri: path for path, uri in PAGES.items()}.get(here, f"docs/{here}")

    def linked(found: re.Match[str]) -> str:
        path, mark, anchor = found[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        uri = posixpath.relpath(_uri(target), posixpath.dirname(here) or ".")
        return f"]({uri}{mark}{anchor})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", linked, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Turn equations, which arithmatex has found, into MathML."""
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', _inline, html, flags=re.S)
    return re.sub(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', _display, html, flags=re.S)


class Docstrings(Extension):
    """Docstrings as Markdown: equations of Sphinx become its own, and products stay products."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring before it is read."""
        if obj.docstring is not None:
            text = re.sub(r":math:`([^`]+)`", r"$\1$", obj.docstring.value)
            text = re.sub(r"^\.\. math::\n((?:[ \t]+.*\n|\n)+)", _block, text, flags=re.M)
            prose = re.split(r"(`[^`]*`)", text)
            prose[::2] = [re.sub(r"(?<=[\w)])\*(?=[\w(])", r"\*", each) for each in prose[::2]]
            obj.docstring.value = "".join(prose)


def _uri(path: str) -> str:
    """Return the place on the site of a path of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("examples/") and path.endswith(".py"):
        return f"{path.removesuffix('.py')}.md"
    uri = path.removeprefix("docs/")
    return f"{uri}/index.md" if (ROOT / path).is_dir() else uri


def _shown(path: Path) -> str:
    """Return the page of an example: its file, to be read."""
    return f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"


def _listed(folder: Path, uri: str) -> str:
    """Return the page of a directory of raw files."""
    names = sorted((each.is_file(), each.name) for each in folder.iterdir())
    lines = [f"- [{name}]({name})" for _, name in names]
    return "\n".join([f"# Raw files: {uri}", "", *lines, ""])


def _inline(found: re.Match[str]) -> str:
    return _mathml(found[1], "inline")


def _display(found: re.Match[str]) -> str:
    return f'<div class="equation">{_mathml(found[1], "block")}</div>'


def _mathml(escaped: str, display: str) -> str:
    """Return an equation as MathML that browsers know; fail where LaTeX was not understood."""
    latex = html.unescape(escaped).strip().replace("{aligned}", "{align*}")
    equation = convert(latex, display=display)
    if "\\" in equation or "<mi>&</mi>" in equation:
        raise PluginError(f"latex2mathml does not know all of {latex!r}; write it in simpler terms")
    return re.sub(r' mathvariant="script">([A-Z])', _script, equation)


def _script(found: re.Match[str]) -> str:
    """Return a letter of its own in place of a variant, which browsers no longer draw."""
    return ">" + unicodedata.lookup(f"MATHEMATICAL SCRIPT CAPITAL {found[1]}")


def _block(found: re.Match[str]) -> str:
    body = textwrap.dedent(found[1]).strip()
    aligned = rf"\begin{{aligned}}{body}\end{{aligned}}" if "&" in body else body
    return f"$$\n{aligned}\n$$\n\n"
