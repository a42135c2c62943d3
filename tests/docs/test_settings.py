"""YAML on the pages is read as the settings that it claims to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dropmuon.lab.config import Config, read_settings
from tests.docs.pages import PAGES, Block, blocks

YAML = [
    pytest.param(block, id=f"{block.page}:{block.line}")
    for page in PAGES
    for block in blocks(page, "yaml")
]


@pytest.mark.parametrize("block", YAML)
def test_a_yaml_block_is_a_file_of_settings(block: Block, tmp_path: Path) -> None:
    """Its first line says for what: `# NAME.yaml, for: dropmuon compare --config NAME.yaml`."""
    claim = re.match(r"# (\S+), for: dropmuon (\w+) --config (\S+)\n", block.text)
    assert claim is not None
    assert claim[1] == claim[3]
    assert claim[2] == "compare"
    path = tmp_path / claim[1]
    path.write_text(block.text, encoding="utf-8")
    settings = read_settings(path)
    config = Config.of(settings)
    assert set(settings) <= set(config.to_json())
    for name in config.methods:
        config.method(name)


def test_the_lab_page_shows_settings_in_a_file() -> None:
    assert blocks("docs/lab.md", "yaml")
