"""The site builds without a warning, and its pages hold everything that they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml

import dropmuon
from tests.docs.pages import PAGES, ROOT

pytest.importorskip("material", reason="needs pip install -e '.[docs]'")
pytest.importorskip("mkdocstrings", reason="needs pip install -e '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def texts(site: Path) -> dict[str, str]:
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(site.rglob("*.html"))
    }


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    for name, text in texts(site).items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"([^\"]+)", text)
        loaded += re.findall(r"<link[^>]+rel=\"(?:stylesheet|icon)\"[^>]+href=\"([^\"]+)", text)
        loaded += re.findall(r"<link[^>]+href=\"([^\"]+)\"[^>]+rel=\"stylesheet", text)
        assert [each for each in loaded if re.match(r"[a-z]*:?//", each)] == [], name


def test_what_a_page_shows_or_links_to_is_there(site: Path) -> None:
    count = 0
    for name, text in texts(site).items():
        if name == "404.html":  # served in any folder, so its links begin at the root
            continue
        for target in re.findall(r"(?:src|href)=\"([^\"]+)\"", text):
            path = unquote(urldefrag(target).url)
            if path and not re.match(r"[a-z]+:", path):
                assert (site / name).parent.joinpath(path).exists(), f"{name}: {target}"
                count += 1
    assert count > 1000


def test_equations_are_drawn(site: Path) -> None:
    pages = texts(site)
    assert pages["theory.html"].count("<math") > 150
    assert pages["api/optimizer.html"].count("<math") > 5
    for name, text in pages.items():
        assert "arithmatex" not in text, name
        assert ":math:" not in text, name
        prose = re.sub(r"<(code|script|pre|style)\b.*?</\1>", "", text, flags=re.S)
        assert "$" not in re.sub(r"<[^>]*>", "", prose), name


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = texts(site)["index.html"]
    for page in PAGES:
        name = Path(page).stem.lower()
        if page != "README.md":
            assert re.search(rf'href="(\./)?{name}\.html"', home) or name == "index", page


def test_public_names_are_in_the_reference(site: Path) -> None:
    shown = "".join(text for name, text in texts(site).items() if name.startswith("api/"))
    modules = ("norms", "presets", "samplers", "theory", "rules")
    for name in dropmuon.__all__:
        if name.startswith("_"):
            continue
        owners = getattr(dropmuon, name).__all__ if name in modules else [""]
        for owned in owners:
            anchor = ".".join(filter(None, ["dropmuon", name, owned]))
            assert f'id="{anchor}"' in shown, anchor


def test_the_settings_of_the_site_are_strict() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load(re.sub(r"!!python\S+", "", lines))
    assert settings["strict"] is True
    for kinds in settings["validation"].values():
        assert set(kinds.values()) == {"warn"}
