"""Figures of made-up runs as files."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dropmuon.lab import analysis
from dropmuon.lab.report.figures import write_figures
from tests.lab.synthetic_runs import METHODS, write_run


def test_every_figure_is_drawn_for_screens_and_for_print(tmp_path):
    run = write_run(tmp_path / "run", methods=METHODS[1:3], seeds=2, targets=[90.0])
    written = write_figures(run, analysis.summarize(run))
    names = {path.name for path in written}
    assert {f"time-to-target-test-operations.{kind}" for kind in ("png", "svg")} <= names
    assert {"accuracy-train.png", "normalized-train-seconds.svg", "sampling.png"} <= names
    assert len(names) == 24
    for path in written:
        assert path.suffix == ".svg" or np.asarray(Image.open(path).convert("L")).std() > 5


def test_a_figure_drawn_again_is_the_same_file(tmp_path):
    nothing = {(method, seed): 0 for method in METHODS for seed in range(3)}
    run = write_run(tmp_path / "run", stop=nothing)
    before = {path: path.read_bytes() for path in write_figures(run, analysis.summarize(run))}
    assert {path.name for path in before} == {"sampling.png", "sampling.svg"}
    write_figures(run, analysis.summarize(run))
    assert {path: path.read_bytes() for path in before} == before
