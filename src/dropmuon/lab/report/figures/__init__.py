"""The paper's figures of a run, as PNG for looking and SVG for printing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from dropmuon.files import write_bytes
from dropmuon.lab.analysis.results import Results
from dropmuon.lab.analysis.series import SPLITS, UNITS, trials
from dropmuon.lab.report.figures.bars import time_to_target
from dropmuon.lab.report.figures.curves import accuracy, normalized
from dropmuon.lab.report.figures.layers import layer_activity, sampling
from dropmuon.lab.report.figures.palette import STYLE, Palette
from dropmuon.lab.run import RunDirectory

__all__ = ["write"]

_FILE_DATES = {"png": {}, "svg": {"Date": None}}
"""Without a date, the same run gives the same bytes."""


def write(run: RunDirectory, results: Results) -> list[Path]:
    """Draw what the run has data for into its figures directory, and say what was written."""
    folder = run.path / "figures"
    folder.mkdir(exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for name, figure in _figures(run, results):
            for kind, metadata in _FILE_DATES.items():
                file = io.BytesIO()
                figure.savefig(file, format=kind, metadata=metadata)
                figure.set_layout_engine("none")  # the first file has settled it
                written.append(folder / f"{name}.{kind}")
                write_bytes(written[-1], file.getvalue())
    return written


def _figures(run: RunDirectory, results: Results) -> Iterator[tuple[str, Figure]]:
    by_method = trials(run.evaluations())
    palette = Palette(results.methods, results.baseline)
    for split in SPLITS:
        if by_method:
            yield f"accuracy-{split}", accuracy(by_method, palette, split)
        for unit in UNITS:
            curves = [e for e in results.curves if (e.split, e.unit) == (split, unit)]
            if curves:
                yield f"normalized-{split}-{unit}", normalized(curves, palette)
            if results.finals and results.targets:
                figure = time_to_target(results, palette, split, unit)
                yield f"time-to-target-{split}-{unit}", figure
    drawn = {name: found for name, found in run.methods.items() if found.get("cutoff")}
    if drawn:
        yield "sampling", sampling(drawn)
    named = {name: found.get("layers", []) for name, found in run.methods.items()}
    moved = layer_activity(by_method, named)
    if moved is not None:
        yield "layer-activity", moved
