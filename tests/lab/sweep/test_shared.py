"""The study that workers share, and where it is kept."""

from __future__ import annotations

import optuna
import pytest

from dropmuon.lab.sweep import sweep
from dropmuon.lab.sweep.queue import Queue
from dropmuon.lab.sweep.shared import open_study
from tests.lab.small_sweeps import spec_of


def test_a_storage_that_is_no_database_is_refused_without_its_password(tmp_path):
    with pytest.raises(ValueError, match="must be the URL of a database"):
        sweep(spec_of(), tmp_path / "a", storage="somewhere")
    with pytest.raises(OSError, match=r"sqlite:////nowhere.*cannot be used"):
        sweep(spec_of(), tmp_path / "b", storage="sqlite:////nowhere/at/all.db")


def test_optuna_shows_the_axes_as_parameters(tmp_path):
    spec = spec_of({"lr": [0.1], "channels": [[8], [4, 4]]})
    study = open_study(spec, tmp_path, None, Queue(spec, spec.cells()).fill)
    assert isinstance(study, optuna.Study)
    assert [trial.params for trial in study.trials] == [
        {"lr": 0.1, "channels": "[8]"},
        {"lr": 0.1, "channels": "[4, 4]"},
    ]
