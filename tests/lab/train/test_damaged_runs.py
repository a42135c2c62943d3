"""Runs that something has damaged: told at once, with file, place and remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dropmuon.cli import main
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.compare import compare
from tests.lab.tiny import tiny
from tests.lab.train.runs import StopAfter


def interrupted(out: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        compare(tiny(), out, watcher=StopAfter(5))
    return out


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupted(tmp_path_factory.mktemp("runs") / "begun")


@pytest.fixture
def copied(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "copied"))


@pytest.mark.parametrize("content", [b"", b"nothing that torch wrote"])
def test_a_checkpoint_of_something_else_is_named_with_the_remedy(
    copied: Path, content: bytes
) -> None:
    (copied / "checkpoints" / "0-seed0.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"0-seed0.pt is damaged .*; remove it"):
        compare(tiny(), copied, resume=True)


def test_one_flipped_bit_in_a_saved_tensor_is_noticed(copied: Path) -> None:
    path = copied / "checkpoints" / "0-seed0.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"0-seed0.pt is damaged .*; remove it"):
        compare(tiny(), copied, resume=True)


def test_evaluations_older_than_a_checkpoint_are_refused(copied: Path) -> None:
    path = copied / "evaluations.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(ValueError, match=r"is at step 2, but evaluations.jsonl has no line of"):
        compare(tiny(), copied, resume=True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2, is damaged: Expecting property name"),
        ("[]", "line 2, is damaged"),
        ("{}", "line 2, is damaged: .*missing"),
        ('{"seed": 1e400}', "line 2, is damaged: seed is wrong"),
    ],
)
def test_a_damaged_line_is_named(copied: Path, line: str, words: str) -> None:
    path = copied / "evaluations.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=words):
        compare(tiny(), copied, resume=True)


def test_damaged_methods_are_told_before_training(copied: Path) -> None:
    (copied / "methods.json").write_text("{")
    with pytest.raises(ValueError, match=r"methods.json is not JSON"):
        compare(tiny(), copied, resume=True, watcher=StopAfter(0))


def test_drafts_of_a_killed_process_are_removed(copied: Path) -> None:
    left = [copied / ".config.json.abcd1234.draft", copied / "checkpoints/.0.pt.abcd_123.draft"]
    own = copied / ".notes.draft"
    for each in (*left, own):
        each.write_text("half")
    compare(tiny(), copied, resume=True)
    assert not any(each.exists() for each in left)
    assert own.exists()


def test_what_nobody_foresaw_is_one_line_with_its_place(
    unbroken: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Path(shutil.copytree(unbroken.path, tmp_path / "work"))
    methods = json.loads((work / "methods.json").read_text())
    del methods["drop-muon:uniform"]["cutoff"][0][0]
    (work / "methods.json").write_text(json.dumps(methods))
    assert main(["report", str(work), "--out", str(tmp_path / "page.html")]) == 2
    err = capsys.readouterr().err
    assert "IndexError: list index out of range (in " in err
    assert len(err.splitlines()) == 1


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
)


@given(content=st.data())
@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example takes too long to shrink it
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_report_on_damaged_files_is_a_page_or_one_line(
    unbroken: RunDirectory,
    tmp_path: Path,
    content: st.DataObject,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`main` raises nothing, whatever stands in one place of one file."""
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(unbroken.path, work)
    name = content.draw(
        st.sampled_from(["config.json", "environment.json", "methods.json", "evaluations.jsonl"])
    )
    path = work / name
    lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
    number = content.draw(st.integers(0, len(lines) - 1))
    lines[number] = json.dumps(damaged(json.loads(lines[number]), content))
    path.write_text("\n".join(lines) + "\n")
    code = main(["report", str(work), "--out", str(tmp_path / "page.html")])
    assert code in (0, 2)
    if code == 2:
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    config = tiny(methods=("full", "drop-muon:uniform"), seeds=(0,), epochs=1)
    return compare(config, tmp_path_factory.mktemp("runs") / "whole")


def damaged(value: Any, content: st.DataObject) -> Any:
    """Return a JSON value with one part of it replaced, or left out."""
    if isinstance(value, dict) and value and content.draw(st.integers(0, 3)):
        key = content.draw(st.sampled_from(sorted(value)))
        if content.draw(st.integers(0, 3)) == 0:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: damaged(value[key], content)}
    if isinstance(value, list) and value and content.draw(st.integers(0, 3)):
        place = content.draw(st.integers(0, len(value) - 1))
        return [*value[:place], damaged(value[place], content), *value[place + 1 :]]
    return content.draw(VALUES)
