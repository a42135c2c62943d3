"""Sweeps: many comparisons as the cells of one study, run by any number of workers."""

from dropmuon.lab.sweep.spec import SweepSpec, read_spec
from dropmuon.lab.sweep.summary import SweepSummary
from dropmuon.lab.sweep.worker import SweepEvent, run_sweep, sweep

__all__ = ["SweepEvent", "SweepSpec", "SweepSummary", "read_spec", "run_sweep", "sweep"]
