"""Races: every rung once, interrupted and resumed; what is left to do; what is printed."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dropmuon.lab.analysis.race import summarize_race
from dropmuon.lab.config import Config
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.race import Progress, RaceDisplay, conclude_race, race, race_table, rung_config
from dropmuon.lab.run import Evaluation, RunDirectory
from dropmuon.lab.train.compare import compare
from dropmuon.lab.watch import Watcher
from tests.lab.synthetic_races import write_race
from tests.lab.tiny import tiny

LADDER = (0.5, 1.0, 2.0)

CONFIG = tiny(methods=("full", "sgd"), seeds=(0, 1))


class Recorder:
    """Stands for `compare`: writes down what it was asked, and fails where it is told to."""

    def __init__(self, error: BaseException | None = None, at: float = 0.0) -> None:
        self.calls: list[tuple[str, float, bool]] = []
        self.known: list[Mapping[str, Mapping[str, Any]]] = []
        self._error, self._at = error, at

    def __call__(
        self,
        config: Config,
        out: Path,
        *,
        resume: bool,
        watcher: Watcher,
        known: Mapping[str, Mapping[str, Any]],
    ) -> RunDirectory:
        self.calls.append((out.name, config.epochs, resume))
        self.known.append(known)
        if self._error is not None and self._at == len(self.calls):
            raise self._error
        out.mkdir(parents=True, exist_ok=True)
        RunDirectory(out).write("config.json", config.to_json())
        if config.tune:
            found = {"settings": {"lr": config.epochs}}
            RunDirectory(out).write("tuned.json", dict.fromkeys(config.methods, found))
        return RunDirectory(out)


def test_every_rung_is_a_comparison_with_its_share_of_epochs(tmp_path: Path) -> None:
    recorder, config = Recorder(), tiny(epochs=4)
    found = race(config, tmp_path / "race", ladder=LADDER, compare=recorder)
    assert recorder.calls == [
        ("rung-0.50", 2, False),
        ("rung-1.00", 4, False),
        ("rung-2.00", 8, False),
    ]
    assert (found.ladder, found.finished) == (LADDER, LADDER)
    assert found.settings == json.loads(json.dumps(config.to_json()))


def test_a_resumed_race_continues_with_the_rung_that_was_interrupted(tmp_path: Path) -> None:
    config = tiny(epochs=4)
    with pytest.raises(KeyboardInterrupt):
        race(config, tmp_path, ladder=LADDER, compare=Recorder(KeyboardInterrupt(), at=2))
    RunDirectory(tmp_path / "rung-1.00").path.mkdir()
    RunDirectory(tmp_path / "rung-1.00").write("config.json", {})
    recorder = Recorder()
    race(config, tmp_path, ladder=LADDER, resume=True, compare=recorder)
    assert recorder.calls == [("rung-1.00", 4, True), ("rung-2.00", 8, False)]


def test_a_race_is_resumed_with_what_it_began_with(tmp_path: Path) -> None:
    race(tiny(), tmp_path, ladder=LADDER, compare=Recorder())
    with pytest.raises(ValueError, match=r"lr must be what the run began with.*0\.05, got 0\.2"):
        race(tiny(lr=0.2), tmp_path, ladder=LADDER, resume=True, compare=Recorder())
    with pytest.raises(ValueError, match="ladder must keep the rungs of the race, got none of 2;"):
        race(tiny(), tmp_path, ladder=(0.5, 1.0), resume=True, compare=Recorder())
    recorder = Recorder()
    race(tiny(), tmp_path, ladder=LADDER, resume=True, compare=recorder)
    assert recorder.calls == []


def test_a_resumed_race_adds_rungs_to_its_ladder(tmp_path: Path) -> None:
    race(tiny(), tmp_path, ladder=LADDER, compare=Recorder())
    recorder, longer = Recorder(), (0.25, *LADDER, 4.0)
    found = race(tiny(), tmp_path, ladder=longer, resume=True, compare=recorder)
    assert [name for name, *_ in recorder.calls] == ["rung-0.25", "rung-4.00"]
    assert found.ladder == found.finished == longer


def test_a_search_begins_with_what_the_next_smaller_budget_was_tuned_to(tmp_path: Path) -> None:
    recorder, config = Recorder(), tiny(epochs=4, tune=3, methods=("full",))
    race(config, tmp_path, ladder=(1.0, 2.0), compare=recorder)
    race(config, tmp_path, ladder=(0.5, 1.0, 1.5, 2.0, 3.0), resume=True, compare=recorder)
    assert recorder.known == [
        {},
        {"full": {"lr": 4}},
        {},
        {"full": {"lr": 4}},
        {"full": {"lr": 8}},
    ]


def test_a_race_that_is_rejected_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "race"
    with pytest.raises(ValueError, match="no"):
        race(tiny(), out, ladder=LADDER, compare=Recorder(ValueError("no"), at=1))
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)
    with pytest.raises(ValueError, match="no"):
        race(tiny(), out, ladder=LADDER, compare=Recorder(ValueError("no"), at=1))
    assert list(out.iterdir()) == []


def test_a_race_that_fails_later_is_kept(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"):
        race(tiny(), tmp_path, ladder=LADDER, compare=Recorder(OSError("full"), at=2))
    assert RaceDirectory(tmp_path).finished == (0.5,)


def test_what_is_no_ladder_is_rejected_before_anything(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least two rungs"):
        race(tiny(), tmp_path / "race", ladder=(1.0,), compare=Recorder())
    assert list(tmp_path.iterdir()) == []


def test_a_budget_is_never_empty() -> None:
    assert rung_config(tiny(epochs=1), 0.01).epochs > 0
    assert rung_config(tiny(epochs=10), 1.4).epochs == 14


def test_a_real_race_is_interrupted_resumed_and_summarised(tmp_path: Path) -> None:
    """It ends with the same numbers as one that was never interrupted, but for seconds."""

    class Interrupt(Watcher):
        def evaluated(self, evaluation) -> None:
            if evaluation.seed == 3 and evaluation.step:
                raise KeyboardInterrupt

    config = tiny(methods=("full", "drop-muon:uniform"), train_examples=100)
    lines: list[str] = []
    progress = Progress(LADDER, lines.append)
    with pytest.raises(KeyboardInterrupt):
        race(
            config,
            tmp_path / "one",
            ladder=LADDER,
            progress=progress,
            watcher_of=lambda path: Interrupt() if "1.00" in path.name else Watcher(),
        )
    assert RaceDirectory(tmp_path / "one").finished == (0.5,)
    one = race(config, tmp_path / "one", ladder=LADDER, resume=True, compare=compare)
    other = race(config, tmp_path / "other", ladder=LADDER)
    for found in (one, other):
        results = summarize_race(found)
        assert (results.finished, results.seeds, len(results.gaps)) == (LADDER, (0, 3), 12)
    first, second = (
        [(p.method, p.rung, p.steps, p.operations, p.by_seed) for p in summarize_race(r).places]
        for r in (one, other)
    )
    assert first == second
    assert lines[0] == "0.5 times the budget: 1 of 3"
    assert lines[1].startswith("0.5 times the budget: done; 1 of 3 budgets done, 14 % of the race")


def evaluation(method: str, seed: int, step: int, progress: float | None = None) -> Evaluation:
    numbers = (step / 10, 1.0, 1.0, 0.5, 1.0, 0.5, 1.0)
    return Evaluation(method, seed, step, *numbers, progress=progress)


def started(now: list[float], finished: tuple[float, ...] = ()) -> Progress:
    progress = Progress((0.5, 1.0, 2.5), clock=lambda: now[0])
    progress.start(finished)
    progress.enter(1.0 if finished else 0.5)
    progress.begin(CONFIG, 20)
    return progress


def test_time_left_follows_from_the_budgets_left() -> None:
    now = [100.0]
    progress = started(now)
    assert progress.text() == "0 of 3 budgets done, 0 % of the race; time left unknown yet"
    progress.advance("full", 0, 1, 0.1)
    for method in ("full", "sgd"):
        for seed in (0, 1):
            progress.advance(method, seed, 20, 1.0)
    progress.leave(0.5)
    now[0] = 110.0
    assert progress.text() == (
        "1 of 3 budgets done, 12 % of the race; 10.0 s gone, about 70.0 s left"
    )
    for rung in (1.0, 2.5):
        progress.leave(rung)
    assert progress.text() == "3 of 3 budgets done, 100 % of the race; 10.0 s gone"
    resumed = Progress((0.5, 1.0), clock=lambda: now[0])
    resumed.start((0.5, 1.0))
    assert resumed.text() == "2 of 2 budgets done, 100 % of the race; 0.0 s gone"


def test_a_rung_counts_in_part() -> None:
    now = [0.0]
    progress = started(now)
    progress.advance("full", 0, 10, 0.5)
    progress.advance("sgd", 0, 10, 0.5)
    now[0] = 1.0
    assert "3 % of the race; 1.0 s gone, about 31.0 s left" in progress.text()


def test_what_an_earlier_process_did_is_not_counted_as_speed() -> None:
    now = [0.0]
    progress = started(now, finished=(0.5,))
    for method in ("full", "sgd"):
        progress.evaluated(evaluation(method, 0, 20))
    assert progress.left() == "time left unknown yet"
    progress.advance("full", 1, 0, 0.0)
    progress.advance("full", 1, 20, 0.0)
    now[0] = 5.0
    assert progress.left() == "5.0 s gone, about 55.0 s left"


def test_progress_that_is_told_comes_before_steps() -> None:
    """Methods that take more steps for the same budget are not done sooner."""
    now = [0.0]
    progress = started(now)
    progress.progressed("full", 0, 0.5)
    progress.advance("full", 0, 40, 1.0)
    progress.evaluated(evaluation("sgd", 0, 40, progress=0.5))
    now[0] = 1.0
    assert "3 % of the race" in progress.text()


def test_the_display_of_a_rung_has_a_line_about_the_race() -> None:
    progress = started([0.0])
    file = io.StringIO()
    console = Console(file=file, width=100, color_system=None)
    display = RaceDisplay(console, progress)
    display.begin(CONFIG, 20)
    display.end()
    console.print(display.render())
    assert "0 of 3 budgets done, 0 % of the race" in file.getvalue()
    assert "sgd" in file.getvalue()


def test_a_terminal_gets_the_sentence_and_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    conclude_race(write_race(tmp_path / "race"), terminal=True)
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("drop-muon:parts-4 won: full needs 1.6")
    assert "At the whole budget, and how many times the cost full needs for the same" in out
    assert out.endswith("race/report.html")
    names = {path.name for path in (tmp_path / "race").iterdir()}
    assert names >= {"results.json", "results.csv", "report.html", "picture.svg"}


def test_where_no_person_reads_csv_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude_race(write_race(tmp_path / "race"), terminal=False)
    assert capsys.readouterr().out == (tmp_path / "race" / "results.csv").read_text()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_cells_are_never_cut(tmp_path: Path, width: int) -> None:
    race = write_race(tmp_path / "race")
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    console.print(race_table(summarize_race(race)))
    assert "…" not in file.getvalue()
    assert all(len(line) <= width for line in file.getvalue().splitlines())


def test_a_race_without_a_finished_rung_has_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude_race(write_race(tmp_path / "race", finished=0), terminal=True)
    out = capsys.readouterr().out
    assert out.startswith("Nothing to compare yet")
    assert "method" not in out
