"""Attempts at cells: chosen by a search, lost, taken by other workers, and given up."""

from __future__ import annotations

import math
import time

import pytest

from dropmuon.lab.sweep.queue import Heartbeat, LeaseLostError, Queue
from dropmuon.lab.sweep.shared import open_study
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


def test_a_worker_whose_cell_was_taken_stops(tmp_path):
    spec = spec_of()
    queue = Queue(spec, spec.cells())
    study = open_study(spec, tmp_path, None, queue.fill)
    claim = queue.claim(study, "asleep")
    with Heartbeat(claim.beat, grace=0.04) as heart:
        assert queue.rescue(study, "asleep") == [claim.cell.name]
        time.sleep(0.1)
        with pytest.raises(LeaseLostError):
            heart.check()
    assert not queue.finish(study, claim.trial, 1.0, {})
    queue.fill(study)
    assert [each.state for each in queue.histories(study)] == ["waiting"]


def test_a_worker_that_cannot_reach_the_study_for_long_stops(tmp_path):
    def unreachable(count):
        if count > 1:
            raise ConnectionError

    with Heartbeat(unreachable, grace=0.04) as heart:
        time.sleep(0.1)
        with pytest.raises(LeaseLostError):
            heart.check()
