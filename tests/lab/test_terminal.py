"""What a person at the terminal sees: progress, then tables, of whole and interrupted runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.table import Table

from dropmuon.lab import analysis, terminal
from dropmuon.lab.analysis import wording
from dropmuon.lab.analysis.series import SPLITS, UNITS
from dropmuon.lab.config import Config
from dropmuon.lab.report import conclude
from dropmuon.lab.run import Evaluation, RunDirectory
from tests.lab.synthetic_runs import METHODS, in_bits, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("results") / "whole")


def shown(*drawn: RenderableType, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(width=width, file=file, color_system=None)
    for each in drawn:
        console.print(each)
    return file.getvalue()


def evaluation(method: str, seed: int, step: int) -> Evaluation:
    return Evaluation(method, seed, step, step / 10, step * 0.1, step * 1e6, 0.5, 1.0, 0.25, 1.0)


def begun(now: list[float]) -> terminal.Display:
    console = Console(file=io.StringIO(), force_terminal=True)
    display = terminal.Display(console, clock=lambda: now[0])
    display.begin(Config(methods=("full", "sgd"), seeds=(0, 1), epochs=2), total_steps=20)
    return display


def test_rows_tell_seed_epoch_accuracies_and_speed() -> None:
    display = begun([0.0])
    assert "starting" in shown(display.render(), width=120)
    display.progressed("full", 0, 0.25)
    display.advance("full", 0, 5, 0.5)
    display.evaluated(evaluation("sgd", 0, 10))
    display.end()
    full, sgd = shown(display.render(), width=120).splitlines()[1:3]
    assert full.split() == ["full", "0", "0.5/2", "10.0"]
    assert sgd.split() == ["sgd", "0", "1.0/2", "50.0%", "25.0%", "1.000", "10.0"]


def test_time_left_follows_from_steps_of_all_methods_and_seeds() -> None:
    now = [0.0]
    display = begun(now)
    for method in ("full", "sgd"):
        display.progressed(method, 0, 0.5)
        display.advance(method, 0, 10, 1.0)
    now[0] = 30.0
    display.end()
    assert "30.0 s gone, about 90.0 s left" in shown(display.render(), width=120)


def test_what_an_earlier_run_did_is_not_counted_as_speed() -> None:
    now = [0.0]
    display = begun(now)
    for method in ("full", "sgd"):
        display.evaluated(evaluation(method, 0, 20))
    assert "starting" in shown(display.render(), width=120)
    display.progressed("full", 1, 0.5)
    display.advance("full", 1, 10, 1.0)
    now[0] = 10.0
    display.end()
    assert "10.0 s gone, about 30.0 s left" in shown(display.render(), width=120)


def cells(table: Table) -> list[list[str]]:
    """The texts of a table by row, its header first."""
    columns = [[str(c.header), *(str(cell) for cell in c.cells)] for c in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_tables_hold_costs_times_ratios_intervals_and_misses(run):
    summary = analysis.summarize(run)
    costs = {row[0]: row[1:] for row in cells(terminal.costs_table(summary))}
    muon, adamw = summary.final("muon"), summary.final("adamw")
    assert adamw is not None
    assert costs["muon (baseline)"][3:] == [
        wording.duration(muon.seconds),
        wording.operations(muon.operations),
        wording.duration(muon.seconds_per_step),
    ]
    assert costs["adamw"] == [
        wording.loss(adamw),
        wording.percent(adamw.train.mean),
        wording.percent(adamw.test.mean),
        wording.share(adamw.seconds / muon.seconds),
        wording.share(adamw.operations / muon.operations),
        wording.share(adamw.seconds_per_step / muon.seconds_per_step),
    ]
    rows = cells(terminal.targets_table(summary, "test", "operations"))[1:]
    assert [row[0] for row in rows if row[0]] == ["60 %", "70 %", "80 %", "90 %", "95 %"]
    assert [row[1] for row in rows] == [*METHODS] * 5
    found = summary.speedup("drop-muon:epoch-shift", 90.0, "test", "operations")
    assert rows[3 * 5 + 2][2:] == [
        wording.operations(found.time),
        f"{found.ratio:.2f}x",
        f"{found.low:.2f} to {found.high:.2f}",
        "3 of 3",
    ]
    assert rows[3 * 5][3:] == ["baseline", "–", "3 of 3"]
    assert rows[-1] == ["", "adamw", "–", "–", "–", "0 of 3"]


def test_text_has_bits_per_byte_in_place_of_accuracies(tmp_path):
    run = in_bits(write_run(tmp_path / "text", methods=METHODS[:2]))
    summary = analysis.summarize(run)
    table = terminal.costs_table(summary)
    header, muon, _ = cells(table)
    assert header == ["method", "bits", "time", "operations", "step"]
    assert muon[1] == f"{summary.final('muon').loss.mean:.3f}"
    assert "bits per byte" in str(table.title)


def test_what_is_printed_last_has_the_final_losses(run, capsys):
    conclude(run, terminal=True)
    printed = " ".join(capsys.readouterr().out.split())
    said = analysis.comparison(analysis.summarize(run))
    assert said.startswith("Its final test loss is 0.")
    assert said in printed


def test_nothing_is_cut_at_80_columns(tmp_path):
    run = write_run(tmp_path / "run", methods=METHODS[:3], targets=[60.0, 72.5, 80.0, 90.0])
    summary = analysis.summarize(run)
    pairs = [(split, unit) for split in SPLITS for unit in UNITS]
    tables = [terminal.targets_table(summary, *pair) for pair in pairs]
    for table in (terminal.costs_table(summary), *tables):
        text = shown(table, width=80)
        assert "…" not in text
        lines = [line for line in text.splitlines() if line.strip()]
        assert str(table.title) == lines.pop(0).strip()
        words = [line.split() for line in lines if not line.startswith("─")]
        assert words == [" ".join(row).split() for row in cells(table)]


def test_long_names_are_folded_and_lose_no_letter(tmp_path):
    name = (
        "a-name-of-the-users-own-that-is-longer-than-any-terminal-has-room-for-" + "0123456789" * 4
    )
    summary = analysis.summarize(write_run(tmp_path / "long", methods=("muon", name), seeds=2))
    table = terminal.costs_table(summary)
    text = shown(table, width=60)
    last = cells(table)[-1]
    for cell in last[1:]:
        assert cell in text
    assert name in "".join(line[:20].split("  ")[0].strip() for line in text.splitlines())


def test_brackets_in_a_name_are_no_markup(tmp_path):
    names = ("[/x]muon", "a[red]b[/x]")
    summary = analysis.summarize(write_run(tmp_path / "odd", methods=names))
    for table in (terminal.costs_table(summary), terminal.targets_table(summary)):
        text = shown(table)
        assert text.count("a[red]b[/x]") >= 1
        assert "[/x]muon" in text.splitlines()[0]


def test_a_run_in_a_directory_with_brackets_is_concluded_and_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("muon", "$\\foo{$ [/x]")
    run = write_run(Path("runs/[/x]"), methods=names, seeds=1, epochs=2, targets=[20.0])
    conclude(run, terminal=True)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "runs/[/x]/report.html"
    assert analysis.verdict(analysis.summarize(run)) in " ".join(printed.split())
    assert (run.path / "figures" / "accuracy-train.png").exists()
    conclude(run, terminal=False)
    assert capsys.readouterr().out == (run.path / "results.csv").read_text()


def test_an_interrupted_run_has_rows_for_what_it_has(tmp_path):
    stop = {("muon", 2): 4, ("drop-muon:uniform", 1): 0, ("drop-muon:uniform", 2): 0}
    run = write_run(tmp_path / "cut", stop={**stop, ("adamw", 0): 1})
    summary = analysis.summarize(run)
    assert "4 of 15 trials are unfinished" in shown(terminal.costs_table(summary))
    rows = cells(terminal.targets_table(summary))[1:]
    assert [row[-1] for row in rows[15:20]] == ["2 of 3", "1 of 1", "3 of 3", "3 of 3", "0 of 3"]


def test_a_run_without_evaluations_has_empty_rows(tmp_path):
    run = write_run(tmp_path / "empty", stop={(m, s): 0 for m in METHODS for s in range(3)})
    summary = analysis.summarize(run)
    assert cells(terminal.costs_table(summary))[1] == ["muon (baseline)", *"––––––"]
    assert cells(terminal.targets_table(summary))[1] == ["60 %", "muon", *"––––"]
