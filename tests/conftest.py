"""Settings of every test: one thread, no hidden randomness, and the devices that are present."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("dropmuon", derandomize=True, deadline=None)
settings.load_profile("dropmuon")

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.mps.is_available()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Return each available device, one after the other."""
    return request.param
