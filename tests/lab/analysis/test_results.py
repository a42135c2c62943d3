"""Results of made-up runs, whole and interrupted."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from dropmuon.lab import analysis
from dropmuon.lab.run import RunDirectory
from tests.lab.synthetic_runs import METHODS, in_bits, speedup, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("results") / "whole")


def test_a_summary_has_every_method_target_split_and_unit(run):
    summary = analysis.summarize(run)
    assert summary.methods == METHODS
    assert summary.baseline == "muon"
    assert (summary.planned, summary.unfinished) == (15, ())
    assert len(summary.speedups) == 5 * 5 * 4
    assert len(summary.curves) == 5 * 4
    assert [final.method for final in summary.finals] == list(METHODS)
    assert summary.speedup("muon", 90.0).ratio == 1.0
    assert 1.0 < summary.load.mean < summary.load.greatest < 1.3


def test_the_verdict_names_the_best_challenger_at_the_highest_target(run):
    summary = analysis.summarize(run)
    found = analysis.headline(summary)
    assert (found.method, found.target) == ("drop-muon:epoch-shift", 95.0)
    assert analysis.verdict(summary).startswith(
        "drop-muon:epoch-shift reached 95 % train accuracy 1."
    )


def test_the_verdict_prefers_a_target_that_all_seeds_reached(run):
    lower = replace(speedup(1.2), target=80.0)
    higher = speedup(1.5, reached=1)
    summary = replace(analysis.summarize(run), speedups=(lower, higher))
    assert analysis.headline(summary) == lower
    assert analysis.headline(replace(summary, speedups=(higher,))) == higher


def test_files_hold_the_same_numbers(run):
    summary = analysis.summarize(run)
    analysis.write_results(run, summary)
    content = json.loads((run.path / "results.json").read_text())
    assert content["verdict"] == analysis.verdict(summary)
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
    summary = analysis.summarize(run)
    assert set(summary.unfinished) == {*stop, ("adamw", 0)}
    found = summary.speedup("drop-muon:uniform", 90.0)
    assert (found.seeds, len(found.ratios), found.low) == (1, 1, None)
    assert summary.final("muon").seeds == 2


def test_a_run_without_evaluations_says_so(tmp_path):
    run = write_run(tmp_path / "empty", stop={(m, s): 0 for m in METHODS for s in range(3)})
    summary = analysis.summarize(run)
    assert analysis.verdict(summary) == "Nothing was evaluated yet."
    analysis.write_results(run, summary)


def test_without_a_common_target_the_best_quality_is_named(tmp_path):
    run = write_run(tmp_path / "images", methods=METHODS[:2], targets=[])
    assert "test loss of 0." in analysis.verdict(analysis.summarize(run))
    text = in_bits(write_run(tmp_path / "text", methods=METHODS[:2], targets=[]))
    summary = analysis.summarize(text)
    best = min(summary.finals, key=lambda each: each.loss.mean)
    assert analysis.verdict(summary) == (
        f"No target was reached by two methods; {best.method} ended best, at "
        f"{best.loss.mean:.3f} bits per byte."
    )


def test_a_baseline_alone_has_nothing_to_be_compared_with(tmp_path):
    summary = analysis.summarize(write_run(tmp_path / "alone", methods=("muon",)))
    assert "ran alone" in analysis.verdict(summary)
