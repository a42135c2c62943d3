"""Results of made-up runs, whole and interrupted."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from dropmuon.lab.analysis import results, wording
from dropmuon.lab.analysis.metrics import Speedup
from dropmuon.lab.run import RunDirectory
from tests.lab.synthetic_runs import METHODS, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("results") / "whole")


def speedup(
    ratio, low=None, high=None, reached=3, unit="seconds", baseline_reached=3, compared=None
) -> Speedup:
    both = reached if compared is None else compared
    ratios = {} if ratio is None else dict.fromkeys(range(both), ratio)
    key = ("a", "train", unit, 90.0)
    return Speedup(*key, ratio, low, high, ratios, 12.34, reached, 3, baseline_reached, 3)


def test_a_summary_has_every_method_target_split_and_unit(run):
    summary = results.summarize(run)
    assert summary.methods == METHODS
    assert summary.baseline == "muon"
    assert (summary.planned, summary.unfinished) == (15, ())
    assert len(summary.speedups) == 5 * 5 * 4
    assert len(summary.curves) == 5 * 4
    assert [final.method for final in summary.finals] == list(METHODS)
    assert summary.speedup("muon", 90.0).ratio == 1.0
    assert 1.0 < summary.load.mean < summary.load.greatest < 1.3


def test_the_verdict_names_the_best_challenger_at_the_highest_target(run):
    summary = results.summarize(run)
    found = results.headline(summary)
    assert (found.method, found.target) == ("drop-muon:epoch-shift", 95.0)
    assert results.verdict(summary).startswith(
        "drop-muon:epoch-shift reached 95 % train accuracy 1."
    )


def test_the_verdict_prefers_a_target_that_all_seeds_reached(run):
    lower = replace(speedup(1.2), target=80.0)
    higher = speedup(1.5, reached=1)
    summary = replace(results.summarize(run), speedups=(lower, higher))
    assert results.headline(summary) == lower
    assert results.headline(replace(summary, speedups=(higher,))) == higher


def test_files_hold_the_same_numbers(run):
    summary = results.summarize(run)
    results.write(run, summary)
    content = json.loads((run.path / "results.json").read_text())
    assert content["verdict"] == results.verdict(summary)
    assert content["baseline"] == "muon"
    assert len(content["curves"][0]["mean"]) == 101
    rows = list(csv.DictReader((run.path / "results.csv").read_text().splitlines()))
    assert len(rows) == len(summary.speedups)
    row = next(
        row
        for row in rows
        if (row["method"], row["split"], row["unit"], row["target"])
        == ("drop-muon:uniform", "test", "operations", "80.0")
    )
    found = summary.speedup("drop-muon:uniform", 80.0, "test", "operations")
    assert float(row["ratio"]) == found.ratio
    assert (int(row["reached"]), int(row["seeds"]), int(row["compared"])) == (3, 3, 3)


def test_an_interrupted_run_is_compared_where_it_can_be(tmp_path):
    stop = {("muon", 2): 4, ("drop-muon:uniform", 1): 0, ("drop-muon:uniform", 2): 0}
    run = write_run(tmp_path / "cut", stop={**stop, ("adamw", 0): 1})
    with (run.path / "evaluations.jsonl").open("a") as file:
        file.write('{"method": "muon", "se')
    summary = results.summarize(run)
    assert set(summary.unfinished) == {*stop, ("adamw", 0)}
    found = summary.speedup("drop-muon:uniform", 90.0)
    assert (found.seeds, len(found.ratios), found.low) == (1, 1, None)
    assert summary.final("muon").seeds == 2


def test_a_run_without_evaluations_says_so(tmp_path):
    run = write_run(tmp_path / "empty", stop={(m, s): 0 for m in METHODS for s in range(3)})
    summary = results.summarize(run)
    assert results.verdict(summary) == "Nothing was evaluated yet."
    results.write(run, summary)


def test_a_baseline_alone_has_nothing_to_be_compared_with(tmp_path):
    summary = results.summarize(write_run(tmp_path / "alone", methods=("muon",)))
    assert "ran alone" in results.verdict(summary)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            speedup(1.234, 1.1, 1.35),
            "a reached 90 % train accuracy 1.23x sooner than muon (1.10 to 1.35, 3 of 3 seeds).",
        ),
        (
            speedup(0.8, 0.7, 0.9),
            "a was slower than muon: 0.80x its speed to 90 % train accuracy "
            "(0.70 to 0.90, 3 of 3 seeds).",
        ),
        (
            speedup(1.1, 0.9, 1.3, reached=2),
            "a and muon reached 90 % train accuracy about equally soon: 1.10x "
            "(0.90 to 1.30, 2 of 3 seeds; the rest missed it).",
        ),
        (
            speedup(1.5, 1.4, 1.6, baseline_reached=2, compared=2),
            "a reached 90 % train accuracy 1.50x sooner than muon "
            "(1.40 to 1.60, 3 of 3 seeds, compared on 2).",
        ),
        (
            speedup(1.5, unit="operations"),
            "a reached 90 % train accuracy 1.50x more cheaply than muon (3 of 3 seeds).",
        ),
        (
            speedup(None, reached=0),
            "a missed 90 % train accuracy on all of 3 seeds; muon reached it on 3 of 3.",
        ),
        (
            speedup(None, reached=0, baseline_reached=0),
            "a missed 90 % train accuracy on all of 3 seeds; muon missed it, too.",
        ),
        (
            speedup(None, baseline_reached=0),
            "a reached 90 % train accuracy (3 of 3 seeds), and muon did not where it did.",
        ),
    ],
)
def test_wins_draws_losses_and_misses_are_said_plainly(found, expected):
    assert wording.sentence(found, "muon") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0.0 s"),
        (5e-5, "50 µs"),
        (0.0123, "12.3 ms"),
        (12.34, "12.3 s"),
        (119.0, "119 s"),
        (600.0, "10.0 min"),
        (3 * 3600.0, "3.0 h"),
        (None, "–"),
    ],
)
def test_times_are_short(value, expected):
    assert wording.duration(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.234e12, "1.23 TFLOP"), (5e9, "5 GFLOP"), (12.0, "12 FLOP"), (None, "–"), (2e15, "2 PFLOP")],
)
def test_operations_are_short(value, expected):
    assert wording.operations(value) == expected
