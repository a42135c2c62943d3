"""Races as they run: every rung once, interrupted and resumed, and nothing left of a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dropmuon.lab.analysis.race import summarize_race
from dropmuon.lab.config import Config
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.race import Progress, race, rung_config
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train.compare import compare
from dropmuon.lab.watch import Watcher
from tests.lab.tiny import tiny

LADDER = (0.5, 1.0, 2.0)


class Recorder:
    """Stands for `compare`: writes down what it was asked, and fails where it is told to."""

    def __init__(self, error: BaseException | None = None, at: float = 0.0) -> None:
        self.calls: list[tuple[str, float, bool]] = []
        self._error, self._at = error, at

    def __call__(
        self, config: Config, out: Path, *, resume: bool, watcher: Watcher
    ) -> RunDirectory:
        self.calls.append((out.name, config.epochs, resume))
        if self._error is not None and self._at == len(self.calls):
            raise self._error
        out.mkdir(parents=True, exist_ok=True)
        RunDirectory(out).write("config.json", config.to_json())
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
    with pytest.raises(ValueError, match="ladder must be what the run began with"):
        race(tiny(), tmp_path, ladder=(0.5, 1.0), resume=True, compare=Recorder())
    recorder = Recorder()
    race(tiny(), tmp_path, ladder=LADDER, resume=True, compare=recorder)
    assert recorder.calls == []


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
