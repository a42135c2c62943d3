"""Every test of sweeps has a machine of its own."""

from __future__ import annotations

import pytest

from dropmuon.lab.sweep.shared import LOCK_VARIABLE


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "machine.lock"))
