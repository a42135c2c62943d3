"""The files that a project keeps agree with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import yaml

from dropmuon import __version__
from tests.docs.pages import ROOT, text_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))


def read(path: str) -> dict:
    found: dict = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return found


def test_the_citation_has_the_version_and_the_paper() -> None:
    citation = read("CITATION.cff")
    assert str(citation["version"]) == __version__
    (paper,) = citation["references"]
    assert paper["title"] == "Drop-Muon: Update Less, Converge Faster"
    assert len(paper["authors"]) == 4
    assert paper["url"] == PROJECT["urls"]["Paper"]


def test_the_changelog_is_kept_as_keep_a_changelog_asks() -> None:
    lines = text_of("CHANGELOG.md").splitlines()
    assert lines[0] == "# Changelog"
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    for line in versions[1:]:
        assert re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}( \[YANKED\])?", line)
    kinds = {line[4:] for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_version_is_the_last_one_released_or_the_next() -> None:
    page = text_of("CHANGELOG.md")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", page, re.M)
    assert __version__ in (released[:1] or re.findall(r"release will be (\S+)\.$", page, re.M))


def test_every_target_of_the_makefile_is_listed_by_help() -> None:
    shown = subprocess.check_output(["make", "--no-print-directory", "help"], cwd=ROOT, text=True)
    listed = {line.split()[1] for line in shown.splitlines()}
    assert listed == TARGETS
    assert all(len(line.split()) > 2 for line in shown.splitlines())


def test_the_workflow_makes_what_the_makefile_has() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    made = {target for line in runs if line.startswith("make") for target in line.split()[1:]}
    site = set() if (ROOT / "mkdocs.yml").exists() else {"docs"}
    assert made - site <= TARGETS
    assert made >= {"lint", "types", "imports", "check", "docs", "dist"}


def test_the_workflow_tests_every_python_that_is_supported() -> None:
    tested = read(".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3.1" in line]
    assert tested == named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_the_hooks_run_the_tools_of_the_environment() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"].split()[0] for hook in repository["hooks"]]
    tools = {entry.removeprefix(".venv/bin/") for entry in entries if entry.startswith(".venv")}
    assert tools == {"ruff", "lint-imports", "mypy"}


@pytest.mark.parametrize("path", ["bug.yml", "idea.yml"])
def test_the_forms_for_issues_ask_for_something(path: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{path}")
    assert {"name", "description", "body"} <= form.keys()
    assert any(each.get("validations", {}).get("required") for each in form["body"])


def test_paths_that_the_checklist_of_a_release_names_exist() -> None:
    page = text_of("RELEASING.md")
    for path in re.findall(r"`((?:src|benchmarks|tests)/[\w/.]+|\w+\.(?:md|cff|toml))`", page):
        assert (ROOT / path).exists(), path
