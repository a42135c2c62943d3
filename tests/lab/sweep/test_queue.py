"""Attempts at cells: chosen by a search, lost, and given up."""

from __future__ import annotations

import math

from dropmuon.lab.sweep.queue import Queue
from dropmuon.lab.sweep.study import open_study
from tests.lab.small_sweeps import spec_of


def test_tpe_learns_from_cells_that_missed_the_target_too(tmp_path):
    spec = spec_of(
        {"lr": {"low": 0.001, "high": 1.0}},
        search="tpe",
        trials=30,
        objective={"metric": "seconds_to_target"},
    )
    queue = Queue(spec, None)
    study = open_study(spec, tmp_path, None, queue.fill)
    chosen = []
    while claim := queue.claim(study, "here"):
        lr = claim.cell.config.lr
        queue.finish(study, claim.trial, abs(lr - 0.3) if lr < 0.5 else math.inf, {})
        chosen.append(lr)
    assert len(chosen) == 30
    assert sum(lr < 0.5 for lr in chosen[15:]) > 10


def test_a_cell_that_keeps_killing_its_workers_is_given_up(tmp_path):
    spec = spec_of()
    queue = Queue(spec, spec.cells())
    study = open_study(spec, tmp_path, None, queue.fill)
    deaths = 0
    while queue.claim(study, "here"):
        deaths += len(queue.rescue(study, "here"))
        queue.fill(study)
    assert deaths == 6
    assert [each.state for each in queue.histories(study)] == ["failed"]
