"""Tuning: equal for all methods, blind to the test set, done once, and continued where it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.race import rung_config
from dropmuon.lab.run import RunDirectory
from dropmuon.lab.train import tune
from dropmuon.lab.train.compare import compare
from dropmuon.lab.train.equal_terms import without_validation
from dropmuon.lab.train.trial import Trial
from dropmuon.lab.train.tune import tuned, with_tuned
from dropmuon.lab.watch import Watcher
from tests.lab.tiny import tiny
from tests.lab.train.runs import StopAfter, timeless

DOCS = Path(__file__).parents[3] / "docs"


def small(**changes: Any) -> Config:
    settings = {"budget": "ops", "methods": ("full", "drop-muon:parts-4"), "seeds": (0, 1)}
    return tiny(**{**settings, "tune": 3, "epochs": 1, "evaluations_per_epoch": 1, **changes})


class Noted(Watcher):
    """Keeps what takes time, and presses Ctrl-C at the trial of this number."""

    def __init__(self, stop: int | None = None) -> None:
        self.trials: list[str] = []
        self._stop = stop

    def prepare(self, what: str) -> None:
        if what.startswith("tuning"):
            self.trials.append(what)
            if len(self.trials) == self._stop:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def digits() -> data.Data:
    return data.load("digits")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return compare(small(), tmp_path_factory.mktemp("runs") / "tuned")


def test_the_validation_part_is_the_same_tenth_of_the_training_set(digits: data.Data) -> None:
    part, again = without_validation(digits, 0.1), without_validation(digits, 0.1)
    assert (len(part.train), len(part.test)) == (1293, 144)
    assert torch.equal(part.test.inputs, again.test.inputs)
    together = torch.cat([part.train.targets, part.test.targets])
    assert torch.equal(together.sort()[0], digits.train.targets.sort()[0])


def test_every_method_gets_as_many_trials_and_the_given_settings_first(run: RunDirectory) -> None:
    report = json.loads((run.path / "tuned.json").read_text())
    assert set(report) == {"full", "drop-muon:parts-4"}
    for name, found in report.items():
        trials = json.loads((run.path / "tuning" / found["file"]).read_text())["trials"]
        assert len(trials) == found["trials"] == 3
        assert trials[0]["settings"] == {"lr": 0.05, "momentum": 0.5}
        assert found["loss"] == min(each["loss"] for each in trials)
        assert run.methods[name]["settings"] | found["settings"] == run.methods[name]["settings"]


def test_the_settings_that_were_asked_for_are_kept_apart_from_the_tuned(run: RunDirectory) -> None:
    assert Config.of(run.config) == small()


def test_what_is_tuned_is_not_tuned_again(
    run: RunDirectory, digits: data.Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Noted()
    before = [path.read_bytes() for path in sorted((run.path / "tuning").iterdir())]
    report = tuned(small(title="other", seeds=(5,)), digits, run.path / "tuning", watcher)
    assert watcher.trials == []
    assert [path.read_bytes() for path in sorted((run.path / "tuning").iterdir())] == before
    assert report["full"]["settings"]["lr"] == run.methods["full"]["settings"]["lr"]


def test_a_tuned_run_or_race_serves_as_the_source_of_its_settings(
    run: RunDirectory, tmp_path: Path
) -> None:
    """As published, without the files of the search; other settings are searched for, elsewhere."""
    rung = tmp_path / "race" / "rung-1.00"
    rung.mkdir(parents=True)
    shutil.copy(run.path / "tuned.json", rung)
    shutil.copy(run.path / "tuned.json", tmp_path / "race" / "race.json")
    for number, source in enumerate((rung, rung.parent)):
        watcher, known = Noted(), {"full": {"lr": 0.1, "momentum": 0.1}}
        out = tmp_path / str(number)
        again = compare(small(), out, watcher=watcher, tuning=source, known=known)
        assert not watcher.trials
        assert again.tuned == run.tuned
        assert with_tuned(small(), again.tuned).options["full"] == run.tuned["full"]["settings"]
    watcher, other = Noted(), small(methods=("full",), seeds=(0,), lr=0.2)
    compare(other, tmp_path / "other", watcher=watcher, tuning=rung)
    assert len(watcher.trials) == 3
    assert [path.name for path in rung.iterdir()] == ["tuned.json"]


def test_a_race_of_the_docs_can_be_repeated_without_its_searches(tmp_path: Path) -> None:
    race, watcher = RaceDirectory(DOCS / "results/races/fashion-mini"), Noted()
    config = rung_config(Config.of(race.settings), race.ladder[0])
    found = data.load(config.dataset)
    report = tuned(config, found, tmp_path / "searches", watcher, published=race.path)
    assert report == race.rung(race.ladder[0]).tuned
    again = tuned(config, found, race.path / "tuning", watcher)
    assert again == report
    assert not watcher.trials
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", ['{"full": 3}', '{"full": {}}', '{"full": {"settings": 3}}', '{"full": {"settings":']
)
def test_a_damaged_file_of_tuned_settings_is_named(
    digits: data.Data, tmp_path: Path, content: str
) -> None:
    (tmp_path / "tuned.json").write_text(content)
    with pytest.raises(ValueError, match=r"tuned.json is (damaged: it has|not JSON)"):
        tuned(small(), digits, tmp_path / "cache", Watcher(), published=tmp_path)


@pytest.mark.parametrize("content", [None, "{}", '{"full": {"settings": {"lr": 0.1}}}'])
def test_a_run_that_lost_its_tuned_settings_does_not_train_on_with_others(
    tmp_path: Path, content: str | None
) -> None:
    with pytest.raises(KeyboardInterrupt):
        compare(small(), tmp_path / "run", watcher=StopAfter(3))
    path = tmp_path / "run" / "tuned.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(
        ValueError, match=r"has no (tuned\.json|settings of).*start (the run|it) again"
    ):
        compare(small(), tmp_path / "run", resume=True)


def test_more_trials_continue_the_search_and_fewer_are_its_start(
    run: RunDirectory, digits: data.Data, tmp_path: Path
) -> None:
    watcher = Noted()
    cache = tmp_path / "tuning"
    for count in (2, 3, 1):
        report = tuned(small(tune=count), digits, cache, watcher)
    assert [each.split()[2] for each in watcher.trials] == ["1", "2", "1", "2", "3", "3"]
    assert all(found["settings"] == {"lr": 0.05, "momentum": 0.5} for found in report.values())
    for path in cache.iterdir():
        assert path.read_bytes() == (run.path / "tuning" / path.name).read_bytes()


def settings_tried(cache: Path) -> list[dict[str, Any]]:
    (path,) = cache.iterdir()
    return [each["settings"] for each in json.loads(path.read_text())["trials"]]


def test_known_settings_are_tried_second_where_they_are_searched(
    digits: data.Data, tmp_path: Path
) -> None:
    def trials(**known: Any) -> list[dict[str, Any]]:
        cache = tmp_path / repr(known)
        tuned(small(methods=("full",)), digits, cache, Watcher(), known={"full": known})
        return settings_tried(cache)

    given = {"lr": 0.05, "momentum": 0.5}
    assert trials(lr=0.2, momentum=0.3)[:2] == [given, {"lr": 0.2, "momentum": 0.3}]
    assert trials(lr=7.0, momentum=0.3)[1] == {"lr": 0.05, "momentum": 0.3}
    assert trials(weight_decay=0.1) == trials()


@pytest.mark.parametrize("stop", [2, 5])
def test_a_search_keeps_the_known_settings_that_it_began_with(
    digits: data.Data, tmp_path: Path, stop: int
) -> None:
    """Such as those of a race, whose ladder may get a rung in between."""
    config = small(methods=("full",), tune=6)
    known = [{"full": {"lr": lr, "momentum": 0.3}} for lr in (0.2, 0.02)]
    tuned(config, digits, tmp_path / "whole", Watcher(), known=known[0])
    with pytest.raises(KeyboardInterrupt):
        tuned(config, digits, tmp_path / "cut", Noted(stop), known=known[0])
    tuned(config, digits, tmp_path / "cut", Watcher(), known=known[1])
    found = settings_tried(tmp_path / "cut")
    assert found == settings_tried(tmp_path / "whole")
    assert all(each not in found[:place] for place, each in enumerate(found))


def test_a_run_keeps_the_settings_that_it_began_to_train_with(
    run: RunDirectory, tmp_path: Path
) -> None:
    """Also if its search would now begin with other ones, and if the files of it are gone."""
    with pytest.raises(KeyboardInterrupt):
        compare(small(), tmp_path / "run", watcher=StopAfter(3))
    shutil.rmtree(tmp_path / "run" / "tuning")
    known = {"full": {"lr": 0.07, "momentum": 0.1}}
    again = compare(small(), tmp_path / "run", resume=True, known=known)
    assert timeless(again) == timeless(run)
    assert again.tuned == run.tuned


def test_settings_tuned_in_other_pieces_are_tuned_again(
    run: RunDirectory, digits: data.Data, tmp_path: Path
) -> None:
    """Pieces change the statistics of batch norm, and rounding."""
    cache, watcher = tmp_path / "tuning", Noted()
    shutil.copytree(run.path / "tuning", cache)
    tuned(small(tune=1, methods=("full",)), digits, cache, watcher)
    assert len(watcher.trials) == 1


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_an_interrupted_search_is_continued_as_if_it_was_not(
    run: RunDirectory, tmp_path: Path, stop: int
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        compare(small(), out, watcher=Noted(stop))
    assert not (out / "evaluations.jsonl").exists()
    assert timeless(compare(small(), out, resume=True)) == timeless(run)


def test_training_that_is_interrupted_after_tuning_goes_on_with_its_settings(
    run: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        compare(small(), tmp_path / "run", watcher=StopAfter(3))
    assert timeless(compare(small(), tmp_path / "run", resume=True)) == timeless(run)


def test_test_data_change_nothing(digits: data.Data, tmp_path: Path) -> None:
    other = replace(digits, test=data.Examples(digits.test.inputs[:3] * 0, digits.test.targets[:3]))
    config = small(methods=("full",))
    found = [
        tuned(config, each, tmp_path / str(k), Watcher()) for k, each in enumerate([digits, other])
    ]
    assert found[0] == found[1]


def test_a_share_of_the_budget_is_enough_for_a_trial(
    digits: data.Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    class Counted(Trial):
        def advance(self, until: float) -> None:
            super().advance(until)
            steps.append(self.step)

    monkeypatch.setattr(tune, "Trial", Counted)
    for share in (1.0, 0.5):
        config = small(methods=("full",), tune=1, tune_share=share, epochs=4)
        tuned(config, digits, tmp_path / "tuning", Watcher())
    assert steps == [16, 8]


def cached(run: RunDirectory, tmp_path: Path) -> Path:
    """A copy of the file of `full`, and nothing else."""
    name = json.loads((run.path / "tuned.json").read_text())["full"]["file"]
    path = tmp_path / name
    path.write_bytes((run.path / "tuning" / name).read_bytes())
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dropmuon": "0.0.1"}, "is stale: it is of dropmuon 0.0.1, and this is"),
        ({"format": 0}, "is stale"),
        ({"key": {}}, "is stale: dataset was None, and is 'digits'"),
        ({"trials": [{"settings": {"lr": 0.1}, "loss": 1.0}]}, "is stale: .* is outside of what"),
        (
            {"trials": [{"settings": {"lr": 3.0, "momentum": 0.5}, "loss": 1.0}]},
            "is stale: .* is outside of what is searched",
        ),
        (
            {"trials": [{"settings": {"lr": "fast", "momentum": 0.5}, "loss": 1.0}]},
            "is stale: .* is outside of what is searched",
        ),
        ({"trials": [{"loss": 1.0}]}, "is damaged"),
        ({"trials": [{"settings": 3, "loss": 1.0}]}, "is damaged"),
        (
            {"trials": [{"settings": {"lr": 0.1, "momentum": 0.5}, "loss": "low"}]},
            "is damaged",
        ),
        ({"hint": 3}, "is damaged"),
        ({"trials": None}, "is damaged"),
    ],
)
def test_a_stale_or_damaged_cache_is_named_with_the_remedy(
    run: RunDirectory, digits: data.Data, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = cached(run, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"tuning cache .*{path.name} {words}.*; remove it"):
        tuned(small(), digits, tmp_path, Watcher())


def test_a_torn_cache_is_damaged(run: RunDirectory, digits: data.Data, tmp_path: Path) -> None:
    path = cached(run, tmp_path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match=r"is damaged .*; remove it"):
        tuned(small(), digits, tmp_path, Watcher())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 1400}, "batch_size must be at most the 1293 examples that validation=0.1"),
        ({"tune_share": 0.1}, "epochs must make at least one step of full"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        compare(small(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_that_never_train_are_an_error(digits: data.Data, tmp_path: Path) -> None:
    config = small(methods=("sgd",), options={"sgd": {"lr": 1e6}}, tune=2)
    with pytest.raises(ValueError, match="no setting of sgd with a finite loss in 2 trials"):
        tuned(config, digits, tmp_path, Watcher())


def test_settings_of_other_classes_are_other_ones(
    run: RunDirectory, tmp_path: Path, digits: data.Data
) -> None:
    some = data.load("digits", classes=(0, 1, 2, 3, 4, 5, 6))
    tuned(small(tune=1), digits, tmp_path, Noted())
    whole = list(tmp_path.iterdir())
    assert all((run.path / "tuning" / path.name).exists() for path in whole)
    tuned(small(tune=1, classes=(0, 1, 2, 3, 4, 5, 6)), some, tmp_path, Noted())
    assert len(list(tmp_path.iterdir())) == 2 * len(whole) == 4
    assert all("classes" not in json.loads(path.read_text())["key"] for path in whole)
