"""The results of races whose outcome is known, and the words for them."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dropmuon.lab.analysis.equal_quality import Distance
from dropmuon.lab.analysis.race import RaceResults, summarize_race
from dropmuon.lab.analysis.race_wording import (
    distance,
    measure_name,
    quality,
    race_standing,
    second,
    tip,
    verdict_of_race,
)
from dropmuon.lab.ladder import LADDER, RaceDirectory
from dropmuon.lab.race import write_race
from tests.lab.synthetic_races import COST, loss_at
from tests.lab.synthetic_races import write_race as synthetic

SLOWER, FASTER = "drop-muon:uniform", "drop-muon:parts-4"


@pytest.fixture(scope="module")
def race(tmp_path_factory) -> RaceDirectory:
    return synthetic(tmp_path_factory.mktemp("races") / "race")


@pytest.fixture(scope="module")
def results(race: RaceDirectory) -> RaceResults:
    return summarize_race(race)


def verdict(path: Path, **changes) -> str:
    race = synthetic(path, **changes)
    return verdict_of_race(summarize_race(race), race.settings)


def found(
    least: float, most: float, low: float | None = None, high: float | None = None
) -> Distance:
    return Distance(0.5, 1.0, least, most, low, high)


def test_places_are_means_of_final_evaluations(results: RaceResults) -> None:
    assert len(results.places) == 3 * len(LADDER)
    place = results.place("full", 1.4)
    assert place.loss.mean == pytest.approx(loss_at(1.4), abs=0.01)
    assert place.loss.least < place.loss.mean < place.loss.greatest
    assert place.cost("operations") == pytest.approx(1.4 * COST)
    assert (place.seeds, place.diverged, len(place.by_seed)) == (5, 0, 5)


@pytest.mark.parametrize(("method", "speed"), [(SLOWER, 0.8), (FASTER, 1.6)])
@pytest.mark.parametrize("measure", ["loss", "accuracy"])
@pytest.mark.parametrize("unit", ["operations", "seconds"])
def test_the_gap_is_the_speed_that_the_method_has(
    results: RaceResults, method: str, speed: float, measure, unit
) -> None:
    gap = results.gap(method, measure, unit)
    assert gap.rung == 1.0
    assert gap.distance.ratio == pytest.approx(speed, rel=0.08)
    assert 0.98 * gap.distance.low < speed < 1.02 * gap.distance.high  # it is interpolated
    truth = loss_at(speed)
    assert gap.quality == pytest.approx(
        truth if measure == "loss" else 0.96 - 0.38 * truth / 2.3, abs=0.01
    )


def test_a_machine_that_is_slower_for_a_while_changes_no_distance(tmp_path: Path) -> None:
    race = synthetic(tmp_path / "race", clocks={FASTER: 1.2})
    before = summarize_race(race)
    for rung in LADDER[1:4:2]:
        run = race.rung(rung)
        run.rewrite(
            [
                replace(each, seconds=each.seconds * (3.0 if each.seed else 2.0))
                for each in run.evaluations()
            ]
        )
    after = summarize_race(race)
    for one, other in zip(before.gaps, after.gaps, strict=True):
        assert one.distance.ratio == (other.distance.ratio and pytest.approx(other.distance.ratio))
        assert one.distance.low == pytest.approx(other.distance.low)


def test_the_headline_is_the_best_challenger_at_the_budget_of_one(results: RaceResults) -> None:
    assert (results.headline.method, results.headline.rung) == (FASTER, 1.0)
    assert (results.measure, results.unit) == ("loss", "operations")


def test_bounds_do_not_choose_the_headline_but_quality_does(tmp_path: Path) -> None:
    """At half the seconds, `quick` has the larger bound; `good` has the better loss."""
    speeds = {"full": 1.0, "quick": 2.5, "good": 4.0, "exact": 0.9}
    race = synthetic(tmp_path / "race", speeds, noise=0.0, clocks={"quick": 0.5}, budget="seconds")
    results = summarize_race(race)
    quick, good = (results.gap(method).distance for method in ("quick", "good"))
    assert quick.ratio is good.ratio is None
    assert quick.least > good.least
    assert results.headline.method == "good"


def test_beyond_the_ladder_the_gap_is_a_bound(results: RaceResults) -> None:
    top = results.gap(FASTER, rung=2.0).distance
    assert (top.ratio, top.least, top.most) == (None, pytest.approx(1.0), math.inf)
    assert race_standing(top) == "sooner"
    bottom = results.gap(SLOWER, rung=0.5).distance
    assert (bottom.least, bottom.most) == (0.0, pytest.approx(1.0))


def test_the_headline_is_in_seconds_if_the_budget_is(tmp_path: Path) -> None:
    race = synthetic(tmp_path / "race", budget="seconds", clocks={FASTER: 1.6})
    results = summarize_race(race)
    assert results.unit == "seconds"
    assert results.gap(FASTER).distance.ratio == pytest.approx(1.0, rel=0.05)


def test_without_a_rung_of_one_the_nearest_is_the_headline(tmp_path: Path) -> None:
    race = synthetic(tmp_path / "race", ladder=(0.25, 0.8, 3.0))
    assert summarize_race(race).rung == 0.8


def test_an_unfinished_rung_takes_no_part(tmp_path: Path) -> None:
    results = summarize_race(synthetic(tmp_path / "two", finished=2))
    assert (results.ladder, results.finished, results.rung) == (LADDER, (0.5, 0.7), 0.7)
    assert results.gap(FASTER) is not None
    race = synthetic(tmp_path / "one", finished=1)
    results = summarize_race(race)
    assert results.gaps == ()
    said = verdict_of_race(results, race.settings)
    assert said == "Nothing to compare yet: 1 of 5 budgets finished, 2 needed."
    assert second(results) == ""
    nothing = summarize_race(synthetic(tmp_path / "none", finished=0))
    assert (nothing.places, nothing.headline, nothing.rung) == ((), None, 1.0)


def test_a_run_that_diverged_counts_as_the_worst_loss(tmp_path: Path) -> None:
    results = summarize_race(synthetic(tmp_path / "race", diverged=(FASTER,), noise=0.0))
    place = results.place(FASTER)
    assert place.diverged == 1
    assert place.loss.greatest == pytest.approx(loss_at(0.8 * 0.5))
    assert results.gap(FASTER).distance.ratio < 1.6


def test_where_no_loss_is_finite_accuracy_is_compared(tmp_path: Path) -> None:
    speeds = {"full": 1.0, "sgd": 0.9}
    results = summarize_race(
        synthetic(tmp_path / "race", speeds, seeds=1, diverged=("full", "sgd"))
    )
    assert results.measure == "accuracy"
    assert results.place("sgd").loss is None
    assert {gap.measure for gap in results.gaps} == {"accuracy"}


def test_files_hold_every_place_and_distance(race: RaceDirectory, results: RaceResults) -> None:
    write_race(race, results, "so it is")
    content = json.loads((race.path / "results.json").read_text())
    assert content["verdict"] == "so it is"
    assert len(content["gaps"]) == 2 * 2 * 2 * len(LADDER)
    assert any(gap["distance"]["most"] is None for gap in content["gaps"])
    rows = list(csv.DictReader((race.path / "results.csv").read_text().splitlines()))
    assert len(rows) == len(LADDER) * (1 + 2 * 4)
    top = next(r for r in rows if r["method"] == FASTER and r["rung"] == "2.0")
    assert float(top["least"]) == pytest.approx(1.0)
    assert top["most"] == ""


def test_a_win_is_told_with_its_limits(tmp_path: Path) -> None:
    said = verdict(tmp_path / "race")
    assert said.startswith("drop-muon:parts-4 won: full needs 1.")
    assert "times (1." in said
    assert "the operations to reach its test loss of 0.4" in said
    assert said.endswith(
        "; this holds from 0.5 to 2 times the budget, in both measures and both units, and other "
        "batches than 512 were not tried."
    )


def test_batches_are_not_called_untried_where_a_method_has_its_own(tmp_path: Path) -> None:
    said = verdict(tmp_path / "race", speeds={"full": 1.0, "full@128": 1.5})
    assert said.startswith("full@128 won: full needs 1.")
    assert said.endswith("in both measures and both units.")


def test_a_win_that_time_does_not_confirm_says_so(tmp_path: Path) -> None:
    said = verdict(tmp_path / "race", clocks={FASTER: 1.6})
    assert said.startswith("drop-muon:parts-4 won")
    assert said.endswith("; this does not hold in seconds.")


def test_a_lower_bound_below_1_decides_nothing(tmp_path: Path) -> None:
    """In seconds the baseline, which ends at 1.4, needs more than 1.4 / 1.8 = 0.78 times."""
    speeds = {"full": 1.0, "new": 1.8}
    race = synthetic(tmp_path / "race", speeds, ladder=(0.7, 1.0, 1.4), clocks={"new": 1.8})
    results = summarize_race(race)
    gap = results.gap("new", unit="seconds")
    assert gap.distance.ratio is None
    assert gap.distance.least < 1
    said = verdict_of_race(results, race.settings)
    assert said.startswith("new won: full needs more than 1.4")
    assert "does not hold" not in said
    assert "; this is undecided in seconds, where only a bound is known, and holds" in said


def test_a_win_at_one_budget_only_says_so(tmp_path: Path) -> None:
    race = synthetic(tmp_path / "race", {"full": 1.0, "new": 1.5}, noise=0.0)
    for rung in (0.5, 0.7):
        run = race.rung(rung)
        base = {e.step: e for e in run.evaluations() if e.method == "full"}
        assert base
        same = synthetic(tmp_path / f"{rung}", {"full": 1.0, "new": 0.9}, noise=0.0)
        run.rewrite(same.rung(rung).evaluations())
    said = verdict_of_race(summarize_race(race), race.settings)
    assert said.startswith("new won: full needs 1.5")
    assert said.endswith("; this does not hold at 0.5 and 0.7 times the budget.")


def test_a_loss_is_told_as_plainly(tmp_path: Path) -> None:
    one = verdict(tmp_path / "one", speeds={"full": 1.0, "sgd": 0.8})
    assert one.startswith("full won: it needs 0.")
    assert "the operations of sgd to reach the same test loss of" in one
    two = verdict(tmp_path / "two", speeds={"full": 1.0, "sgd": 0.8, "adamw": 0.7})
    assert "the operations of sgd, the best of the others, to reach" in two


def test_a_draw_is_no_win(tmp_path: Path) -> None:
    speeds = {"full": 1.0, "sgd": 1.0, "adamw": 0.7}
    said = verdict(tmp_path / "race", speeds=speeds, noise=0.02, luck=2, seeds=3)
    assert said.startswith("No clear winner: full needs ")
    assert "the operations of sgd, the best challenger, to reach the same test loss" in said
    assert said.endswith("; sgd is ahead at 1.4 times the budget.")


def test_bits_per_byte_are_named_after_their_number(tmp_path: Path) -> None:
    said = verdict(tmp_path / "race", dataset="shakespeare", model="cnn")
    assert re.search(r"the operations to reach its 0\.\d\d\d bits per byte; this holds", said)


def test_a_method_that_ran_alone_has_no_rival(tmp_path: Path) -> None:
    said = verdict(tmp_path / "race", speeds={"full": 1.0})
    assert said == "full ran alone; there is nothing to race against."


def test_the_second_sentence_has_the_other_measure_unit_and_finals(results: RaceResults) -> None:
    said = second(results)
    assert said.startswith("In seconds it is 1.")
    assert "for the same test accuracy 1." in said
    assert "At the whole budget drop-muon:parts-4 has test loss 0.4" in said
    assert said.endswith(" %).")


def test_losses_are_in_bits_where_evaluations_record_them(tmp_path: Path) -> None:
    race = synthetic(tmp_path / "text", dataset="shakespeare", diverged=(FASTER,), noise=0.0)
    text = summarize_race(race)
    assert (text.in_bits, measure_name("loss", text)) == (True, "bits per byte")
    assert text.place("full").loss.mean == pytest.approx(loss_at(1.0) / math.log(2))
    assert text.place(FASTER).loss.greatest == pytest.approx(loss_at(0.8 * 0.5) / math.log(2))
    write_race(race, text, "")
    assert ",seconds,test_bits_per_byte," in (race.path / "results.csv").read_text()
    other = summarize_race(synthetic(tmp_path / "images", model="gpt", noise=0.0))
    assert (other.in_bits, measure_name("loss", other)) == (False, "test loss")
    assert other.place("full").loss.mean == pytest.approx(loss_at(1.0))


def test_qualities_as_text() -> None:
    assert quality(1.23456, "loss") == "1.235"
    assert quality(0.5, "accuracy") == "50.0 %"
    assert quality(None, "loss") == "–"


@pytest.mark.parametrize(
    ("given", "text", "standing"),
    [
        (found(1.7, 1.7, 1.5, 1.9), "1.70 times (1.50 to 1.90)", "sooner"),
        (found(1.7, 1.7, 0.9, 1.9), "1.70 times (0.90 to 1.90)", "same"),
        (found(0.8, 0.8, 0.7, 0.9), "0.80 times (0.70 to 0.90)", "later"),
        (found(1.7, 1.7, 1.5, math.inf), "1.70 times (at least 1.50)", "sooner"),
        (found(0.8, 0.8, 0.0, 0.9), "0.80 times (at most 0.90)", "later"),
        (found(2.0, math.inf, 1.8, math.inf), "more than 2.00 times (at least 1.80)", "sooner"),
        (found(2.0, math.inf, 2.0, math.inf), "more than 2.00 times", "sooner"),
        (found(1.0, math.inf, 1.0, math.inf), "more than 1.00 times", "sooner"),
        (found(1.0, math.inf, 0.9, math.inf), "more than 1.00 times (at least 0.90)", "same"),
        (found(0.0, 0.5, 0.0, 0.6), "less than 0.50 times (at most 0.60)", "later"),
        (found(0.0, 1.0, 0.0, 1.0), "less than 1.00 times", "later"),
        (found(1.04, 1.04), "1.04 times", "same"),
        (found(1.2, 1.2), "1.20 times", "sooner"),
        (found(0.0, 0.5), "less than 0.50 times", "later"),
        (found(1.0, 1.0, 1.0, 1.0), "1.00 times (1.00 to 1.00)", "same"),
    ],
)
def test_distances_in_words(given: Distance, text: str, standing: str) -> None:
    assert distance(given) == text
    assert race_standing(given) == standing


def test_a_gap_is_explained_in_a_sentence(results: RaceResults) -> None:
    gap = results.gap(FASTER, "accuracy", "seconds", 0.7)
    assert gap is not None
    said = tip(gap, results)
    assert said.startswith("full needs 1.")
    assert said.endswith("that drop-muon:parts-4 reaches at 0.7 times the budget")
    assert "the time for the test accuracy of 8" in said
