"""Many comparisons as the cells of one study, taken by any number of workers."""

from dropmuon.lab.sweep.grids import SweepSpec, read_spec
from dropmuon.lab.sweep.tallies import SweepSummary
from dropmuon.lab.sweep.workers import SweepEvent, run_sweep, sweep

__all__ = ["SweepEvent", "SweepSpec", "SweepSummary", "read_spec", "run_sweep", "sweep"]
