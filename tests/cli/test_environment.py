"""The doctor tells what matters, and exits with 1 only for what is wrong."""

from __future__ import annotations

import signal
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dropmuon.cli import environment, main
from dropmuon.cli.environment import check_versions, extras_of, version_numbers


def test_it_tells_all_that_matters_and_finds_nothing_wrong(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROPMUON_DATA", str(here / "cache"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    subjects = [line[7:15].strip() for line in out.splitlines() if line[:2] in ("ok", "no")]
    expected = ["python", "dropmuon", "torch", "threads", "bfloat16", "step", "extras", "data"]
    assert [each for each in subjects if each in expected] == expected
    assert "layers" in out
    assert str(here / "cache") in out
    assert out.endswith("\nnothing is wrong\n")


def test_a_cache_that_cannot_be_used_is_wrong(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_text("")
    monkeypatch.setenv("DROPMUON_DATA", str(here / "file"))
    found = environment._data()
    assert found.state == "wrong"
    assert "is a file; set DROPMUON_DATA to a directory" in found.text


def test_what_is_wrong_is_named_at_the_end_and_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        environment.Finding("ok", "step", "1 ms"),
        environment.Finding("wrong", "data", "a word " * 30),
    ]
    monkeypatch.setattr(environment, "findings", lambda: iter(found))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.endswith("\nwrong: data\n")
    assert max(map(len, out.splitlines())) <= 100


def test_torch_that_cannot_be_imported_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    torch, found = environment._torch()
    assert torch is None
    assert found.state == "wrong"
    assert "pip install" in found.text


def test_a_step_that_fails_is_wrong_and_ends_nothing() -> None:
    found = environment._step(torch=object())
    assert found.state == "wrong"
    assert found.text.startswith("failed: AttributeError")


@pytest.mark.parametrize("helps", [True, False])
def test_an_illegal_instruction_in_bfloat16_ends_another_process_and_is_a_note(
    monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    dies = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"
    code = f"import os\nif {helps} and 'ONEDNN_MAX_CPU_ISA' in os.environ:\n    print(1.0)\n"
    monkeypatch.setattr(environment, "_PRODUCTS", f"{code}else:\n    {dies}\n")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    found = environment._bfloat16()
    assert found.state == "note"
    assert "SIGILL" in found.text
    assert ("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 prevents it" in found.text) == helps


@pytest.mark.parametrize(("ratio", "state"), [(0.4, "ok"), (44.0, "note")])
def test_slow_bfloat16_is_a_note(monkeypatch: pytest.MonkeyPatch, ratio: float, state: str) -> None:
    monkeypatch.setattr(environment, "_PRODUCTS", f"print({ratio})")
    assert environment._bfloat16().state == state


@pytest.mark.parametrize(
    ("threads", "cores", "load", "words"),
    [
        (2, 2, 0.5, None),
        (8, 2, 0.5, "set OMP_NUM_THREADS=2"),
        (2, 2, 9.0, "others keep the cores busy"),
    ],
)
def test_threads_without_a_core_are_a_note(
    threads: int, cores: int, load: float, words: str | None
) -> None:
    found = environment._threads(threads, cores, load)
    assert found.state == ("ok" if words is None else "note")
    assert words is None or words in found.text


REQUIREMENTS = [
    "numpy>=1.26",
    'scipy>=1.12; extra == "theory"',
    'dropmuon[theory]; extra == "plan"',
    'matplotlib>=3.8; extra == "plan"',
    'dropmuon[plan]; extra == "lab"',
    'rich; extra == "lab"',
]


def test_an_extra_needs_what_the_extras_inside_of_it_need() -> None:
    theory = {"scipy": "1.12"}
    planning = {**theory, "matplotlib": "3.8"}
    found = extras_of(REQUIREMENTS)
    assert found == {"theory": theory, "plan": planning, "lab": {**planning, "rich": "0"}}
    assert extras_of(REQUIREMENTS[::-1]) == found


def test_packages_are_missing_or_too_old_or_neither() -> None:
    versions = {"scipy": "1.9.3", "matplotlib": "3.11.2"}
    needs = extras_of(REQUIREMENTS)["lab"]
    missing, old = check_versions(needs, versions.get)
    assert missing == ["rich"]
    assert old == ["scipy 1.9.3, needs 1.12"]


def test_an_outdated_package_of_a_complete_extra_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=999; extra == 'future'"])
    (found,) = environment._extras()
    assert found.state == "wrong"
    assert "needs 999" in found.text


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.9", (2, 9)), ("1.0rc1", (1, 0)), ("", ())],
)
def test_versions_are_compared_by_number(version: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(version) == numbers
