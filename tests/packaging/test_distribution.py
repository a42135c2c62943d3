"""What is built: small, complete, with metadata that an index accepts."""

from __future__ import annotations

import email
import tarfile
import zipfile
from pathlib import Path

import pytest

from dropmuon import __version__

ROOT = Path(__file__).parents[2]
build = pytest.importorskip("hatchling.build", reason="needs pip install -e '.[dev]'")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return {
            "wheel": folder / build.build_wheel(str(folder)),
            "sdist": folder / build.build_sdist(str(folder)),
        }


def test_they_are_named_after_the_version(archives: dict[str, Path]) -> None:
    assert archives["wheel"].name == f"dropmuon-{__version__}-py3-none-any.whl"
    assert archives["sdist"].name == f"dropmuon-{__version__}.tar.gz"


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_they_have_less_than_6_megabytes(kind: str, archives: dict[str, Path]) -> None:
    assert archives[kind].stat().st_size < 6_000_000


def test_the_wheel_has_all_files_of_the_package_and_no_others(archives: dict[str, Path]) -> None:
    package = ROOT / "src" / "dropmuon"
    wanted = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(archives["wheel"]).namelist())
    assert wanted <= names
    assert all(name.startswith(f"dropmuon-{__version__}.dist-info/") for name in names - wanted)
    assert {"dropmuon/py.typed", "dropmuon/lab/data/fashion_mini.npz"} <= names


def test_the_sdist_has_what_a_build_needs_and_the_tests(archives: dict[str, Path]) -> None:
    with tarfile.open(archives["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "README.md", "LICENSE", "src/dropmuon/optimizer.py"):
        assert needed in names
    assert "tests/packaging/test_distribution.py" in names
    assert not any(name.startswith(("dist/", ".venv/", "runs/")) for name in names)


def test_the_metadata_names_licence_pythons_readme_and_paper(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives["wheel"]) as wheel:
        text = wheel.read(f"dropmuon-{__version__}.dist-info/METADATA").decode()
    found = email.message_from_string(text)
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert found.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2510.02239"]
    needed = [line for line in found.get_all("Requires-Dist", []) if "extra" not in line]
    assert sorted(needed) == ["numpy>=1.26", "torch>=2.9"]
