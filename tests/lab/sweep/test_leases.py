"""A worker whose cell may be taken by others stops."""

from __future__ import annotations

import time

import pytest

from dropmuon.lab.sweep.leases import Heartbeat, LeaseLostError
from dropmuon.lab.sweep.queue import Queue
from dropmuon.lab.sweep.study import open_study
from tests.lab.small_sweeps import spec_of


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
